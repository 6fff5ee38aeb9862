#pragma once

#include <torch/types.h>

#include <tools/heatmap/attention_map.h>
#include <torch_attention/weights/pretrained.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// The place of a layer's attention.
struct LayerSource {
  /// A folder that `save_pretrained` wrote, or a file of weights.
  std::string path;
  /// The part of the model, of a folder.
  PretrainedPart part = PretrainedPart::kAuto;
  /// For a file: the path of the attention in it, where `{}` stands for the
  /// layer; the number of heads, if the file does not tell; and true if it
  /// hides no keys.
  std::string prefix = {};
  std::optional<int64_t> num_heads = std::nullopt;
  bool unmasked = false;
};

/// Returns the attention weights of one layer, by `forward_with_weights`, for x
/// (T, C) or (1, T, C), what enters its attention, in float32.
///
/// Throws c10::Error if there is no such layer, the weights are of no attention
/// that is known, or x does not fit.
LayerWeights weights_of_layer(
    const LayerSource& source,
    int64_t layer,
    const torch::Tensor& x);

/// Returns the weights (H, T, S) of a decoder layer's attention to the output
/// of the encoder, for x (T, C) of the decoder and context (S, C) of the
/// encoder, in float32. Both may have a first dimension of 1.
///
/// Throws c10::Error if `folder` is not one of a model with such a layer, or x
/// or context do not fit.
LayerWeights weights_of_cross_layer(
    const std::string& folder,
    int64_t layer,
    const torch::Tensor& x,
    const torch::Tensor& context);

/// Returns the only tensor of a file, what enters an attention. Throws
/// c10::Error unless it has T rows of numbers: (T, C) or (1, T, C).
torch::Tensor read_input(const std::string& path);

} // namespace torch_attention::tools
