#pragma once

#include <json_tree.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// Returns the fields that the `config.json` of a GGUF file's model would have,
/// as `config_from_gguf` describes.
Json read_gguf_config(const std::string& path);

} // namespace torch_attention::weights::pretrained
