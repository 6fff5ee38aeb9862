#pragma once

#include <torch_attention/weights/convert.h>

#include <torch/types.h>

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// Returns the dtype of "float32", "bfloat16", ... Throws c10::Error that lists
/// them.
torch::ScalarType dtype_named(const std::string& name);

/// Does what `convert_weights` does; shows the progress and prints what was
/// written.
void convert_file(
    const std::string& input,
    const std::string& output,
    ConvertOptions options,
    std::ostream& out);

} // namespace torch_attention::tools
