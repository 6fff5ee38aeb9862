// Reads files as the library does and writes what it found, for scripts that
// compare it with other readers:
//
//   read_all < LINES
//
// A line has a file and another that gets the tensors, with a tab between. For
// each of them a line of JSON is printed: {"error": MESSAGE}, or the names of
// the tensors and of what is not read. Tensors that are quantized are joined by
// the config.json next to the file, if there is one. A line with one file is
// answered by
// {"config": TEXT} of this configuration.

#include <config_file.h>
#include <error_message.h>
#include <torch_attention/weights/write.h>
#include <weights/read.h>

#include <nlohmann/json.hpp>

#include <exception>
#include <iostream>
#include <string>

namespace {

using Json = nlohmann::json;

Json read_config(const std::string& path) {
  const auto config = torch_attention::read_config_file(path);
  return {{"config", config.shown(std::string::npos)}};
}

Json read(const std::string& from, const std::string& to) {
  const auto file = torch_attention::weights::read_weight_file(from);
  file.check(file.tensors.keys());
  Json found = {
      {"tensors", file.tensors.keys()},
      {"others", file.others},
      {"unreadable", Json::object()},
      {"foreign", Json::object()},
      {"stored", Json::object()},
      {"root", file.root}};
  for (const auto& [key, reason] : file.unreadable) {
    found["unreadable"][key] = reason;
  }
  for (const auto& value : file.foreign) {
    found["foreign"][value.path] = {value.reason, value.holds_tensors};
  }
  for (const auto& item : file.tensors) {
    file.stored.fill(item.value());
    if (const auto* stored = file.stored.find(item.value())) {
      found["stored"][item.key()] = stored->form;
    }
  }
  torch_attention::write_weights(file.tensors, to);
  return found;
}

} // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto tab = line.find('\t');
    Json found;
    try {
      found = tab == std::string::npos
          ? read_config(line)
          : read(line.substr(0, tab), line.substr(tab + 1));
    } catch (const std::exception& error) {
      found = {{"error", torch_attention::error_message(error)}};
    }
    // Names of a file may be invalid UTF-8.
    std::cout << found.dump(-1, ' ', false, Json::error_handler_t::replace)
              << std::endl;
  }
  return 0;
}
