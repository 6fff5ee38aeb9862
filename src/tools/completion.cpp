#include <tools/completion.h>

#include <CLI/CLI.hpp>

#include <ostream>

namespace torch_attention::tools {

namespace {

/// Returns the options of a command and its option groups, in one line.
std::string option_words(const CLI::App& app) {
  std::string words;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) {
      words += (words.empty() ? "--" : " --") + name;
    }
  }
  for (const auto* group : app.get_subcommands({})) {
    if (group->get_name().empty()) {
      words += " " + option_words(*group);
    }
  }
  return words;
}

} // namespace

void print_completion(
    const CLI::App& app,
    const std::string& shell,
    std::ostream& out) {
  if (shell == "zsh") {
    out << "autoload -U +X bashcompinit && bashcompinit\n";
  }
  std::string commands;
  std::string cases;
  for (const auto* command : app.get_subcommands({})) {
    commands += command->get_name() + " ";
    cases += "    " + command->get_name() + ") words=\"" +
        option_words(*command) + "\" ;;\n";
  }
  out << "_torch_attention() {\n"
         "  local word=\"${COMP_WORDS[COMP_CWORD]}\" words\n"
         "  case \"${COMP_WORDS[1]}\" in\n"
      << cases << "    *) words=\"" << option_words(app) << "\" ;;\n"
      << "  esac\n"
         "  if ((COMP_CWORD == 1)); then\n"
         "    words=\""
      << commands << option_words(app)
      << "\"\n"
         "  elif [[ \"$word\" != -* ]]; then\n"
         "    words=\"\"\n"
         "  fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _torch_attention torch-attention\n";
}

} // namespace torch_attention::tools
