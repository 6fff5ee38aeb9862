#pragma once

#include <string>

namespace torch_attention::testing {

/// Returns the path of a golden file, where CMake has unpacked them.
inline std::string golden(const std::string& file) {
  return TORCH_ATTENTION_GOLDEN_DIR "/" + file;
}

} // namespace torch_attention::testing
