#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/weights/layout.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// The attention of one layer, as a configuration describes it.
struct DescribedAttention {
  std::string model_type;
  MultiHeadAttentionOptions options;
  /// Its path in the model, such as "layers.3.self_attn"; more may come before.
  std::string path;
  WeightLayout layout;
};

/// Throws c10::Error if the model is not known or has no such layer.
DescribedAttention describe_attention(ModelConfig& config, int64_t layer);

/// The known values of `model_type`, sorted.
std::vector<std::string> known_model_types();

} // namespace torch_attention::weights::pretrained
