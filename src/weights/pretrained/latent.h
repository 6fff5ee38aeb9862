#pragma once

#include <torch_attention/nn/options/latent_attention.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// The latent attention of one layer, as a configuration describes it.
struct DescribedLatent {
  std::string model_type;
  LatentAttentionOptions options;
  /// Its path in the model, such as "layers.3.self_attn"; more may come before.
  std::string path;
};

/// Throws c10::Error if the model is not known or has no such layer.
DescribedLatent describe_latent(ModelConfig& config, int64_t layer);

/// The number of layers of such a model.
int64_t count_latent_layers(ModelConfig& config);

/// Returns whether the attention of models of this `model_type` is latent.
bool is_latent_type(const std::string& model_type);

/// The values of `model_type` whose attention is latent, sorted.
std::vector<std::string> latent_model_types();

} // namespace torch_attention::weights::pretrained
