#pragma once

#include <torch_attention/nn/options/relative_bias.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// A relative position bias, read from a configuration.
struct DescribedRelativeBias {
  std::string model_type;
  RelativeBiasOptions options;
  /// The end of its path in files.
  std::string path;
};

/// Returns the bias of a layer or, without a layer, the bias that all layers
/// share. Throws c10::Error if the model is unknown or has no such bias.
DescribedRelativeBias describe_relative_bias(
    ModelConfig& config,
    PretrainedPart part,
    std::optional<int64_t> layer);

} // namespace torch_attention::weights::pretrained
