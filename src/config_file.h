#pragma once

#include <json_tree.h>

#include <string>

namespace torch_attention {

/// Reads the `config.json` of a model, an object. Throws c10::Error, which
/// names `path`, if it is no such file, or larger, of more values or nested
/// deeper than any configuration.
Json read_config_file(const std::string& path);

} // namespace torch_attention
