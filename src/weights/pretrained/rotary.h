#pragma once

#include <torch_attention/nn/options/rotary.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// The behaviour of a model where its configuration does not say, or has no
/// field.
struct RotaryRules {
  double theta = 10000;
  /// The share of each head that is rotated. None: all, and a configuration
  /// that says otherwise is refused.
  std::optional<double> partial;
  /// True if the scaling holds for layers with a window, too.
  bool scales_sliding = true;
  /// The theta of layers with a window, unless `rope_local_base_freq` says it.
  std::optional<double> local_theta;
};

/// The rotary embedding of a layer of this type, from `rope_parameters`, or
/// from `rope_theta` and `rope_scaling` as older configurations have it.
RotaryOptions rotary_of(
    ModelConfig& config,
    const std::string& layer_type,
    int64_t head_dim,
    const RotaryRules& rules);

/// YaRN's factor of cosines and sines for texts `factor` times as long,
/// weighted by `mscale`.
double yarn_scale(double factor, double mscale);

/// The fields of the rotary embedding count as asked for.
void ignore_rotary(ModelConfig& config);

} // namespace torch_attention::weights::pretrained
