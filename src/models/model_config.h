#pragma once

#include <json_tree.h>

#include <string>

namespace torch_attention::models {

/// Returns the path of the configuration of a model: `config.json` in a folder,
/// or the GGUF file itself.
std::string model_config_path(const std::string& folder);

/// Reads that configuration. Throws c10::Error if there is none.
Json read_model_config(const std::string& folder);

} // namespace torch_attention::models
