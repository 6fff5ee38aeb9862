#pragma once

#include <torch_attention/weights/layout.h>

#include <torch/types.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// What is asked of `convert`.
struct ConvertOptions {
  /// Layout of the file that is read.
  WeightLayout source = WeightLayout::automatic();
  /// Layout of the file that is written; none: that of the file that is read.
  std::optional<WeightLayout> target;
  /// Dotted path in the file that is read; empty for all.
  std::string prefix;
  /// The dtype of floating-point tensors; none: theirs.
  std::optional<torch::ScalarType> dtype;
  /// Number of heads, for layouts that list them.
  std::optional<int64_t> num_heads;
};

/// "float32", "bfloat16", ... Throws c10::Error that lists them.
torch::ScalarType dtype_named(const std::string& name);

/// Reads a file of weights and writes another one, by its extension. Prints
/// what was written.
void convert_file(
    const std::string& input,
    const std::string& output,
    const ConvertOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
