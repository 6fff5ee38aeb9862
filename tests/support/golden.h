#pragma once

#include <string>

namespace torch_attention::testing {

/// Returns the path of a file in tests/golden.
inline std::string golden(const std::string& file) {
  return TORCH_ATTENTION_GOLDEN_DIR "/" + file;
}

} // namespace torch_attention::testing
