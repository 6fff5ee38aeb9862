#pragma once

#include <torch_attention/nn/options/rotary.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// How a class reads the parameters of two types of layers, `full_attention`
/// and `sliding_attention`, each with a theta of its own. Parameters for all
/// layers are not read.
struct RotaryByType {
  /// The theta of layers with a window, where they have none.
  double local_theta = 10000;
  /// The field of the configuration that has it. Null: none.
  const char* local_theta_field = nullptr;
  /// True if `rope_scaling` is also that of layers with a window.
  bool scales_sliding = false;
};

/// The behaviour of a model where its configuration does not say, or has no
/// field.
struct RotaryRules {
  double theta = 10000;
  /// The field of the configuration that has the theta, where the parameters
  /// have none. Null: none, the parameters have to have it.
  const char* theta_field = "rope_theta";
  /// The share of each head that is rotated. None: all, and a configuration
  /// that says otherwise is refused.
  std::optional<double> partial = {};
  /// The field of the configuration that has the share.
  const char* partial_field = "partial_rotary_factor";
  /// None: the parameters are those of all layers.
  std::optional<RotaryByType> by_type = {};
  /// True if the model rotates as many elements as the share says, be their
  /// number odd: such are refused.
  bool needs_even = false;
  /// True if the parameters of each type of layer are read as they are, and
  /// no older style is.
  bool needs_types = false;
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
