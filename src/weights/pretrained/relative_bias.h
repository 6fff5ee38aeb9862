#pragma once

#include <torch_attention/nn/options/relative_bias.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// A bias by the distance of tokens, as a configuration describes it.
struct DescribedRelativeBias {
  std::string model_type;
  RelativeBiasOptions options;
  /// Its path in the model; more may come before.
  std::string path;
};

/// The bias of a layer or, of none, that which all share. Throws c10::Error if
/// the model has no such bias or is not known.
DescribedRelativeBias describe_relative_bias(
    ModelConfig& config,
    PretrainedPart part,
    std::optional<int64_t> layer);

} // namespace torch_attention::weights::pretrained
