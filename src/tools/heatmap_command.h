#pragma once

#include <functional>

namespace CLI {
class App;
} // namespace CLI

namespace torch_attention::tools {

/// Adds the subcommand `heatmap`. Returns the function that runs it, which
/// returns the exit status.
std::function<int()> add_heatmap(CLI::App& app);

} // namespace torch_attention::tools
