#include <tools/man_page.h>

#include <torch_attention/version.h>

#include <CLI/CLI.hpp>

#include <ostream>
#include <string>

namespace torch_attention::tools {

namespace {

/// Returns the text without what roff would take for its own.
std::string roff(const std::string& text) {
  std::string result;
  bool begins_line = true;
  for (const auto c : text) {
    if (begins_line && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    begins_line = c == '\n';
  }
  return result;
}

/// Prints the options of a command, and of its groups.
void print_options(const CLI::App& command, std::ostream& out) {
  for (const auto* option : command.get_options()) {
    const auto is_positional = option->get_positional();
    const auto takes_value = option->get_items_expected_max() > 0;
    out << ".TP\n\\fB"
        << roff(option->get_name(is_positional, /*all_options=*/true))
        << "\\fR";
    if (takes_value && !is_positional) {
      const auto type = option->get_type_name();
      out << " \\fI" << roff(type.substr(0, type.find(':'))) << "\\fR";
    }
    out << "\n" << roff(option->get_description());
    if (!option->get_default_str().empty()) {
      out << " (default: " << roff(option->get_default_str()) << ")";
    }
    out << "\n";
  }
  for (const auto* group : command.get_subcommands({})) {
    if (group->get_name().empty()) {
      print_options(*group, out);
    }
  }
}

} // namespace

void print_man_page(const CLI::App& app, std::ostream& out) {
  const auto name = roff(app.get_name());
  out << ".TH TORCH\\-ATTENTION 1 \"\" \"TorchAttention "
      << TORCH_ATTENTION_VERSION << "\" \"User Commands\"\n.SH NAME\n"
      << name << " \\- " << roff(app.get_description()) << "\n.SH SYNOPSIS\n.B "
      << name << "\n.I COMMAND\n[\\fIARGUMENTS\\fR]\n.SH OPTIONS\n";
  print_options(app, out);
  out << ".SH COMMANDS\n";
  for (const auto* command : app.get_subcommands({})) {
    out << ".SS " << roff(command->get_name()) << "\n"
        << roff(command->get_description()) << ".\n";
    print_options(*command, out);
    if (!command->get_footer().empty()) {
      out << ".PP\n.nf\n" << roff(command->get_footer()) << "\n.fi\n";
    }
  }
}

} // namespace torch_attention::tools
