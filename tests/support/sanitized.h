#pragma once

#include <cstdint>

namespace torch_attention::testing {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

/// Returns a size or number of cases: `fewer` under the address sanitizer,
/// where the kernels take 20 times as long.
constexpr int64_t unless_sanitized(int64_t usual, int64_t fewer) {
  return kIsSanitized ? fewer : usual;
}

} // namespace torch_attention::testing
