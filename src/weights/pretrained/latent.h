#pragma once

#include <torch_attention/nn/options/latent_attention.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// The latent attention of a layer, read from a configuration.
struct DescribedLatent {
  std::string model_type;
  LatentAttentionOptions options;
  /// The end of its path in files, such as "layers.3.self_attn".
  std::string path;
};

/// Reads a configuration. Throws c10::Error if the model is unknown or has no
/// such layer.
DescribedLatent describe_latent(ModelConfig& config, int64_t layer);

/// Returns the number of layers; of attentions, if layers have several.
int64_t count_latent_layers(ModelConfig& config);

/// Returns whether a layer has latent attention: others may have linear
/// attention.
bool has_latent_attention(ModelConfig& config, int64_t layer);

/// Returns whether models of this `model_type` have latent attention.
bool is_latent_type(const std::string& model_type);

/// Returns the values of `model_type` with latent attention, sorted.
std::vector<std::string> latent_model_types();

} // namespace torch_attention::weights::pretrained
