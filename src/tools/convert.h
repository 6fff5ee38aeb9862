#pragma once

#include <torch_attention/weights/layout.h>

#include <torch/types.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// The options of `convert`.
struct ConvertOptions {
  /// Layout of the input file.
  WeightLayout source = WeightLayout::automatic();
  /// Layout of the output file; none: that of the input file.
  std::optional<WeightLayout> target;
  /// Dotted path in the input file; empty: the whole file.
  std::string prefix;
  /// The dtype of floating-point tensors; none: as in the input file.
  std::optional<torch::ScalarType> dtype;
  /// Number of heads, for layouts that list them.
  std::optional<int64_t> num_heads;
};

/// Returns the dtype of "float32", "bfloat16", ... Throws c10::Error that lists
/// them.
torch::ScalarType dtype_named(const std::string& name);

/// Reads a file of weights and writes another one, in the format of its
/// extension. Prints what was written.
void convert_file(
    const std::string& input,
    const std::string& output,
    const ConvertOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
