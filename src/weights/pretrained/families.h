#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/image_rotary.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// A possible path and layout of a layer's attention in a file.
struct Place {
  /// The end of its path, such as "layers.3.self_attn".
  std::string path;
  WeightLayout layout;
};

/// The attention of a layer, read from a configuration.
struct DescribedAttention {
  std::string model_type;
  MultiHeadAttentionOptions options;
  std::vector<Place> places;
  /// Its part of the model, if several parts have the same paths.
  PretrainedPart part = PretrainedPart::kAuto;
  /// A substring of the path in the file, if other paths have the same end.
  std::string within = {};
  /// The beginning of the path in the file, possibly after "model.".
  std::string root = {};
  /// Whether the caller has to pass a bias.
  bool needs_bias = false;
  /// Whether the caller has to pass the rotary angles.
  bool needs_rotary = false;
  /// How the angles for an image are computed, if known.
  std::optional<ImageRotary> image_rotary = {};
  /// The input size of keys and values in cross-attention, if it is not d_in.
  std::optional<int64_t> d_context = {};
  /// Whether the caller has to pass the windows of an image's patches.
  bool has_image_windows = false;
  /// Whether the tokens of an image see each other in both directions.
  bool has_image_blocks = false;
};

/// The requested attention of a model.
struct Wanted {
  int64_t layer = 0;
  PretrainedPart part = PretrainedPart::kAuto;
  /// Whether it is the decoder's attention to the encoder's output.
  bool is_cross = false;
};

/// Reads a configuration. Throws c10::Error if the model is unknown or has no
/// such layer.
DescribedAttention describe_attention(
    ModelConfig& config,
    const Wanted& wanted);

/// Returns a sentence with the reason why a model at `path` is refused, whose
/// type is not in `known_model_types`.
std::string why_refused(const std::string& path, const std::string& type);

/// Returns the number of layers of a part.
int64_t count_layers(ModelConfig& config, PretrainedPart part);

/// Returns the parts of the model; kAuto for a model without parts.
std::vector<PretrainedPart> parts_of(ModelConfig& config);

/// Returns the `model_type` of a part.
std::string type_of_part(ModelConfig& config, PretrainedPart part);

/// Returns whether a part has cross-attention.
bool has_cross_attention(ModelConfig& config, PretrainedPart part);

/// Returns the known values of `model_type`, sorted.
std::vector<std::string> known_model_types();

} // namespace torch_attention::weights::pretrained
