#pragma once

#include <torch_attention/nn/options/rotary.h>
#include <torch_attention/nn/options/temperature.h>
#include <weights/pretrained/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::weights::pretrained {

/// How a class reads separate parameters for `full_attention` and
/// `sliding_attention`. It does not read common ones.
struct RotaryByType {
  /// The default theta of layers with a window.
  double local_theta = 10000;
  /// The field of the configuration with this theta; null if there is none.
  const char* local_theta_field = nullptr;
  /// Whether `rope_scaling` also applies to layers with a window.
  bool scales_sliding = false;
};

/// How a class reads the parameters of its rotary embedding, and its defaults.
struct RotaryRules {
  double theta = 10000;
  /// The field of the configuration with the theta, if the parameters have
  /// none; null if the parameters must have it.
  const char* theta_field = "rope_theta";
  /// The default share of each head that is rotated. None: all of it, and other
  /// shares are refused.
  std::optional<double> partial = {};
  /// The default share of parameters of type "default", if it is another one.
  std::optional<double> partial_of_default_type = {};
  /// The field of the configuration with the share; null if the class ignores
  /// fields beside the parameters.
  const char* partial_field = "partial_rotary_factor";
  /// None: all layers have the same parameters.
  std::optional<RotaryByType> by_type = {};
  /// Whether an odd number of rotated elements is refused, since the class does
  /// not round it up.
  bool needs_even = false;
  /// Whether `rope_parameters` must have parameters for each type of layer.
  bool needs_types = false;
};

/// Returns the rotary embedding of a layer of this type, from
/// `rope_parameters`, or from `rope_theta` and `rope_scaling` in older
/// configurations.
RotaryOptions rotary_of(
    ModelConfig& config,
    const std::string& layer_type,
    int64_t head_dim,
    const RotaryRules& rules);

/// Returns `rope_parameters`, or `rope_scaling` in older configurations. Throws
/// c10::Error if both are there and differ.
Json common_parameters(ModelConfig& config);

/// Returns `rope_type`, or `type` in older parameters; by default "default".
std::string rope_type_of(const Json& parameters);

/// Divides a frequency so that its pair does not turn.
inline constexpr double kStillFactor = 1e30;

/// Divides the frequency of each pair by a factor, for texts of any length.
void set_frequency_factors(
    const std::vector<double>& factors,
    RotaryOptions& options);

/// Returns YaRN's factor of cosines and sines, 0.1 mscale ln(factor) + 1.
double yarn_scale(double factor, double mscale);

/// Returns the temperature in the parameters of the rotary embedding, as
/// Ministral 3 and Mistral 4 have it, and drops its fields there. Throws
/// c10::Error if there is none.
TemperatureOptions temperature_of(ModelConfig& config);

/// Marks the fields of the rotary embedding as read.
void ignore_rotary(ModelConfig& config);

} // namespace torch_attention::weights::pretrained
