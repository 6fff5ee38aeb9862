#pragma once

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// Swaps the attention of a TorchScript model, writes it to `output`, and
/// prints a report. If `check` names a file of inputs, compares outputs and
/// gradients first, writes nothing if they differ, and prints the times.
/// Returns whether a model was written.
bool swap_model(
    const std::string& input,
    const std::string& output,
    const std::string& check,
    std::ostream& out);

} // namespace torch_attention::tools
