#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/image_windows.h>
#include <torch_attention/nn/options/longformer_attention.h>
#include <torch_attention/nn/options/relative_attention.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/image_rotary.h>
#include <weights/pretrained/shared_embeddings.h>
#include <weights/pretrained/stored_rotary.h>

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
  /// Set if the scores add products with relative positions: the options of a
  /// `RelativeAttention`, instead of `options`.
  std::optional<RelativeAttentionOptions> relative;
  /// Set if it sees a window beside global tokens: the options of a
  /// `LongformerAttention`, instead of `options`.
  std::optional<LongformerAttentionOptions> longformer;
  std::vector<Place> places;
  /// Its part of the model, if several parts have the same paths.
  PretrainedPart part = PretrainedPart::kAuto;
  /// A substring of the path in the file, if other paths have the same end.
  std::string within = {};
  /// The beginning of the path in the file, possibly after "model.".
  std::string root = {};
  /// Whether the caller has to pass a bias, and which.
  bool needs_bias = false;
  std::string bias_of_caller = {};
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
  /// The windows of an image into which the caller divides it, if any.
  std::optional<ImageWindowOptions> windows = {};
  /// The embeddings of `relative`, if all layers share them.
  std::optional<SharedEmbeddings> shared_embeddings = {};
  /// The rotary embedding in the file, if the model reads it there.
  StoredRotary stored_rotary = {};

  int64_t head_dim() const {
    return options.head_dim().value_or(options.d_out() / options.num_heads());
  }
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

/// Returns whether a part has self-attention. Most have.
bool has_self_attention(ModelConfig& config, PretrainedPart part);

/// Returns whether a part has cross-attention.
bool has_cross_attention(ModelConfig& config, PretrainedPart part);

/// Returns the known values of `model_type`, sorted.
std::vector<std::string> known_model_types();

} // namespace torch_attention::weights::pretrained
