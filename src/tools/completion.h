#pragma once

#include <iosfwd>
#include <string>

namespace CLI {
class App;
} // namespace CLI

namespace torch_attention::tools {

/// Prints a script for "bash" or "zsh" that completes the subcommands and
/// options of `app`, and file names.
void print_completion(
    const CLI::App& app,
    const std::string& shell,
    std::ostream& out);

} // namespace torch_attention::tools
