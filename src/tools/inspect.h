#pragma once

#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// What is asked of `inspect`.
struct InspectOptions {
  /// Dotted path in the file; empty for all.
  std::string prefix;
  /// Read all values, and compare their checksums.
  bool check = false;
  bool json = false;
};

/// Prints what a file of weights holds: its format, tensors, and the attention
/// modules that are found in it.
void inspect_file(
    const std::string& path,
    const InspectOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
