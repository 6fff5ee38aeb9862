#include <tools/completion.h>

#include <tools/command_line.h>

#include <format_text.h>

#include <CLI/CLI.hpp>

#include <ostream>

namespace torch_attention::tools {

namespace {

/// Returns a line of shell for each command: a pattern of `case`, and its
/// options.
std::string cases_of(const CLI::App& app) {
  std::string cases;
  for (const auto* command : app.get_subcommands({})) {
    cases += format_text(
        "    {}) names=\"{}\" ;;\n",
        command->get_name(),
        fmt::join(option_names(*command), " "));
  }
  return cases;
}

/// Returns the commands and the options before a command.
std::string first_words(const CLI::App& app) {
  std::string words;
  for (const auto* command : app.get_subcommands({})) {
    words += command->get_name() + " ";
  }
  return words + format_text("{}", fmt::join(option_names(app), " "));
}

// {0} is the lines of the commands, {1} the words before one.
constexpr const char* kBash = R"(_torch_attention() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" names=""
  case "${{COMP_WORDS[1]}}" in
{0}  esac
  if ((COMP_CWORD == 1)); then
    names="{1}"
  elif [[ "$word" != -* ]]; then
    names=""
  fi
  COMPREPLY=($(compgen -W "$names" -- "$word"))
}}
complete -o default -F _torch_attention torch-attention
)";

// An installed file of this content is the function _torch-attention itself,
// which zsh calls when it is first needed.
constexpr const char* kZsh = R"(#compdef torch-attention
_torch_attention() {{
  local names=""
  case "${{words[2]}}" in
{0}  esac
  if ((CURRENT == 2)); then
    names="{1}"
  elif [[ "$PREFIX" != -* ]]; then
    _files
    return
  fi
  compadd -- ${{=names}}
}}
if [[ "${{funcstack[1]}}" == _torch-attention ]]; then
  _torch_attention "$@"
else
  compdef _torch_attention torch-attention
fi
)";

} // namespace

void print_completion(
    const CLI::App& app,
    const std::string& shell,
    std::ostream& out) {
  const auto cases = cases_of(app);
  const auto first = first_words(app);
  out
      << (shell == "zsh" ? format_text(kZsh, cases, first)
                         : format_text(kBash, cases, first));
}

} // namespace torch_attention::tools
