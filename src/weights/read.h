#pragma once

#include <weights/state_dict.h>

#include <string>

namespace torch_attention {

/// A file of weights, on the CPU.
struct WeightFile {
  /// What the file is, in words.
  std::string format;
  StateDict tensors;
};

/// Reads a file by its content, not its extension. Throws c10::Error that says
/// what is wrong with the file.
WeightFile read_weight_file(const std::string& path);

} // namespace torch_attention
