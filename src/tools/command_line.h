#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Lets only whole numbers from 1 on be arguments. CLI11's own validator prints
/// the largest number in full.
extern const CLI::Validator kPositive;

/// Returns the options of a command and its option groups, such as "--json".
std::vector<std::string> option_names(const CLI::App& command);

/// Parses the command line, and calls `action`. Returns the exit status: 0
/// after help; what `action` returns; 1 if it throws, or if standard output
/// cannot be written; 2 if the command line is wrong. Then the nearest command
/// or option is named.
int run_program(
    CLI::App& app,
    int argc,
    const char* const* argv,
    const std::function<int()>& action);

} // namespace torch_attention::tools
