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

/// A path and a layout by which a file may have the attention of a layer.
struct Place {
  /// Its path in the model, such as "layers.3.self_attn"; more may come before.
  std::string path;
  WeightLayout layout;
};

/// The attention of one layer, as a configuration describes it.
struct DescribedAttention {
  std::string model_type;
  MultiHeadAttentionOptions options;
  std::vector<Place> places;
  /// The part that it belongs to, if several parts of the model have the same
  /// paths.
  PretrainedPart part = PretrainedPart::kAuto;
  /// A text that the path in the file has before `places`, where others end in
  /// the same way.
  std::string within = {};
  /// The beginning of the path in the file, if need be after "model.".
  std::string root = {};
  /// Adds a bias to the scores that only the caller can give.
  bool needs_bias = false;
  /// Rotates by angles that only the caller can give.
  bool needs_rotary = false;
  /// The making of those of an image, if it is known.
  std::optional<ImageRotary> image_rotary = {};
  /// The size of what cross-attention reads, if it is not d_in.
  std::optional<int64_t> d_context = {};
  /// Sees a window of an image's patches, which only the caller can say.
  bool has_image_windows = false;
  /// Tokens of an image in the text see each other to both sides.
  bool has_image_blocks = false;
};

/// The attention of a model that is meant.
struct Wanted {
  int64_t layer = 0;
  PretrainedPart part = PretrainedPart::kAuto;
  /// The decoder's attention to the encoder's output.
  bool is_cross = false;
};

/// Throws c10::Error if the model is not known or has no such layer.
DescribedAttention describe_attention(
    ModelConfig& config,
    const Wanted& wanted);

/// Returns why the model at `path` of a type that is not among those of
/// `known_model_types` is refused, in a sentence.
std::string why_refused(const std::string& path, const std::string& type);

/// The number of layers of this part of the model.
int64_t count_layers(ModelConfig& config, PretrainedPart part);

/// The parts that the model has; kAuto for one without parts.
std::vector<PretrainedPart> parts_of(ModelConfig& config);

/// The `model_type` of this part.
std::string type_of_part(ModelConfig& config, PretrainedPart part);

/// Returns whether this part attends to the output of another, too.
bool has_cross_attention(ModelConfig& config, PretrainedPart part);

/// The known values of `model_type`, sorted.
std::vector<std::string> known_model_types();

} // namespace torch_attention::weights::pretrained
