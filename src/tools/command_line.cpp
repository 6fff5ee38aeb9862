#include <tools/command_line.h>

#include <edit_distance.h>
#include <error_message.h>
#include <escape.h>

#include <charconv>
#include <cstdint>
#include <exception>
#include <iostream>
#include <system_error>

namespace torch_attention::tools {

const CLI::Validator kPositive(
    [](std::string& text) {
      int64_t value = 0;
      const auto* end = text.data() + text.size();
      const auto read = std::from_chars(text.data(), end, value);
      return read.ec == std::errc() && read.ptr == end && value > 0
          ? std::string()
          : "expected a whole number from 1 on, but got \"" + text + "\"";
    },
    "POSITIVE");

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

/// Returns ". Did you mean NAME?", or "" if none of the names is near.
std::string suggestion_for(
    const std::string& text,
    const std::vector<std::string>& names) {
  auto least = text.size() / 3 + 1;
  std::string nearest;
  for (const auto& name : names) {
    const auto distance = edit_distance(text, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest.empty() ? "" : ". Did you mean " + nearest + "?";
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

/// Returns an error for a first argument that is no command. CLI11 would only
/// report that one is required.
std::string unknown_command(const CLI::App& app, const std::string& first) {
  const auto names = command_names(app);
  for (const auto& name : names) {
    if (name == first) {
      return "";
    }
  }
  return "there is no subcommand \"" + escaped(first) + "\"" +
      suggestion_for(first, names);
}

/// Returns what to write in place of the first unknown option, if there is one.
std::string option_suggestion(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  const auto names = option_names(chosen.empty() ? app : *chosen.front());
  for (const auto& word : app.remaining(/*recurse=*/true)) {
    if (word.rfind("--", 0) == 0) {
      return suggestion_for(word.substr(0, word.find('=')), names);
    }
  }
  return "";
}

int run(
    CLI::App& app,
    int argc,
    const char* const* argv,
    const std::function<int()>& action) {
  constexpr const char* kHelp = "\nRun with --help for more information.\n";
  const std::string first = argc > 1 ? argv[1] : "";
  if (!command_names(app).empty() && !first.empty() && first[0] != '-') {
    const auto error = unknown_command(app, first);
    if (!error.empty()) {
      std::cerr << app.get_name() << ": " << error << kHelp;
      return kWrongUsage;
    }
  }
  // CLI11 would print arguments unescaped.
  app.failure_message([&](const CLI::App*, const CLI::Error& error) {
    return escaped(error.what()) + option_suggestion(app) + kHelp;
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  try {
    return action();
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error_lines(error) << "\n";
  }
  return kFailed;
}

} // namespace

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  for (const auto* group : command.get_subcommands({})) {
    if (group->get_name().empty()) {
      const auto more = option_names(*group);
      names.insert(names.end(), more.begin(), more.end());
    }
  }
  return names;
}

int run_program(
    CLI::App& app,
    int argc,
    const char* const* argv,
    const std::function<int()>& action) {
  const auto status = run(app, argc, argv, action);
  // Output that was not written, as on a full disk, is no success.
  if (!std::cout.flush() && status != kWrongUsage) {
    std::cerr << app.get_name() << ": cannot write to standard output\n";
    return kFailed;
  }
  return status;
}

} // namespace torch_attention::tools
