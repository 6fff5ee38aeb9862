#pragma once

#include <iosfwd>

namespace CLI {
class App;
} // namespace CLI

namespace torch_attention::tools {

/// Prints the manual page of `app` and its commands, for man(1).
void print_man_page(const CLI::App& app, std::ostream& out);

} // namespace torch_attention::tools
