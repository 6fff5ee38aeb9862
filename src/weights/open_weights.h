#pragma once

#include <torch_attention/weights/read.h>

#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// Reads a file, and checks all that `read_weights` checks before it makes its
/// tensors: those of `WeightFile::stored` have no values yet. Throws c10::Error
/// like `read_weights`.
files::WeightFile open_weights(
    const std::string& path,
    const ReadOptions& options);

/// Throws c10::Error if a file that was read as it is stored has a quantized
/// weight: `option`, such as "dtype (--dtype)", would change the integers and
/// scales that its values are computed from.
void check_not_quantized(
    const files::WeightFile& file,
    const std::string& option);

} // namespace torch_attention::weights
