#pragma once

#include <functional>

namespace CLI {
class App;
} // namespace CLI

namespace torch_attention::tools {

/// Add the subcommands with these names. Return the function that runs it,
/// which returns the exit status.
std::function<int()> add_generate(CLI::App& app);
std::function<int()> add_embed(CLI::App& app);
std::function<int()> add_tokens(CLI::App& app);

} // namespace torch_attention::tools
