#pragma once

#include <torch_attention/weights/inspect.h>

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// Prints the contents of a file of weights as text or JSON: its format, its
/// tensors and its attention modules.
void inspect_file(
    const std::string& path,
    const InspectOptions& options,
    bool as_json,
    std::ostream& out);

} // namespace torch_attention::tools
