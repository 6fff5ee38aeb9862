#pragma once

#include <torch_attention/weights/inspect.h>

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// Prints what a file of weights holds: its format, tensors, and the attention
/// modules that are found in it. As a table, or in JSON.
void inspect_file(
    const std::string& path,
    const InspectOptions& options,
    bool as_json,
    std::ostream& out);

} // namespace torch_attention::tools
