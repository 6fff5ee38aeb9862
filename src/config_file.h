#pragma once

#include <json_tree.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace torch_attention {

/// How large a file may be. No configuration is larger: one with the names of
/// 20,000 classes has 1.5 million bytes.
struct ConfigLimits {
  int64_t bytes = 4 * 1024 * 1024;
  size_t values = Json::kMostValues;
};

/// Reads a JSON file. Throws c10::Error, which names `path`, if it is no such
/// file, or larger, of more values or nested deeper than any configuration.
Json read_json_file(const std::string& path, const ConfigLimits& limits = {});

/// Reads the `config.json` of a model, an object. Throws c10::Error as
/// `read_json_file` does, and for another value.
Json read_config_file(const std::string& path, const ConfigLimits& limits = {});

/// Reads another file of a model, an object; an empty one if there is none.
/// Throws c10::Error as `read_config_file` does.
Json read_config_if_there(const std::string& path);

} // namespace torch_attention
