#pragma once

#include <weights/files/weight_file.h>
#include <weights/pretrained/config.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// Throws c10::Error if weights below `path` in the file are quantized in a way
/// that is not read: they need scales, which modules do not have. The error
/// names the file of the configuration.
void check_not_quantized(
    const ModelConfig& config,
    const files::WeightFile& file,
    const std::string& path);

} // namespace torch_attention::weights::pretrained
