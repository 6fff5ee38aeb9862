#pragma once

#include <json_tree.h>

#include <optional>
#include <string>

namespace torch_attention::weights {

/// Returns how the model of a file of weights is quantized: the object
/// `quantization_config` or `compression_config` of the `config.json` next to
/// the file at `path`, else the `quantize_config.json` there. Returns none if
/// neither is there, or cannot be read.
std::optional<Json> quantization_beside(const std::string& path);

} // namespace torch_attention::weights
