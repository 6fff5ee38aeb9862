#pragma once

#include <torch_attention/weights/convert.h>

#include <torch/types.h>

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// Returns the dtype with a name such as "float32" or "bfloat16". Throws
/// c10::Error for other names, and for dtypes that are not floating-point.
torch::ScalarType dtype_named(const std::string& name);

/// Converts a file like `convert_weights`, with a progress bar, and prints a
/// summary.
void convert_file(
    const std::string& input,
    const std::string& output,
    ConvertOptions options,
    std::ostream& out);

} // namespace torch_attention::tools
