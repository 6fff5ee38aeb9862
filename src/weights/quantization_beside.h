#pragma once

#include <json_tree.h>

#include <optional>
#include <string>

namespace torch_attention::weights {

/// Returns how the model of a file of weights is quantized: the object
/// `quantization_config` or `compression_config` of the `config.json` next to
/// the file at `path`, or of its `text_config`; else the `quantize_config.json`
/// or `quant_config.json` there. Returns none if there is none of them. Throws
/// c10::Error if a file cannot be read, or if two say different things.
std::optional<Json> quantization_beside(const std::string& path);

} // namespace torch_attention::weights
