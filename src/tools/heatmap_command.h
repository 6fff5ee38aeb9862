#pragma once

#include <functional>

namespace CLI {
class App;
} // namespace CLI

namespace torch_attention::tools {

/// Adds the subcommand `heatmap`, and returns its work, which returns the exit
/// status.
std::function<int()> add_heatmap(CLI::App& app);

} // namespace torch_attention::tools
