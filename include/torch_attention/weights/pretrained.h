#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/relative_bias.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/cross_attention.h>
#include <torch_attention/nn/options/latent_attention.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// A part of a model that has several attentions of the same layer.
enum class PretrainedPart {
  /// The only one; of a model that writes text and sees images, the text.
  kAuto,
  /// A part of a model with an encoder and a decoder: BART, T5, Whisper.
  kEncoder,
  kDecoder,
  /// A part of a model of text and images or sound: CLIP, LLaVA, Qwen2-Audio.
  kText,
  kVision,
  kAudio,
};

/// Prints `auto`, `encoder`, `decoder`, `text`, `vision` or `audio`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    PretrainedPart part);

/// Options for `attention_from_pretrained`.
///
/// Example:
/// ```
/// attention_from_pretrained(
///     folder, 0, PretrainedOptions().dtype(torch::kBFloat16).log(&std::cout));
/// ```
struct TORCH_ATTENTION_API PretrainedOptions {
  /// dtype of the weights. Default: torch::kFloat
  TORCH_ARG(torch::ScalarType, dtype) = torch::kFloat;

  /// device of the weights. Default: torch::kCPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;

  /// the largest number of tokens. Default: that of the configuration
  TORCH_ARG(std::optional<int64_t>, context_length) = std::nullopt;

  /// which part of the model. Default: PretrainedPart::kAuto
  TORCH_ARG(PretrainedPart, part) = PretrainedPart::kAuto;

  /// load a layer of a model that adds a bias by the distance of tokens to the
  /// scores (T5, MPNet), though the module does not compute it: each call gets
  /// it by `ForwardOptions().bias`. Without this such models are refused.
  /// Default: false
  TORCH_ARG(bool, bias_by_caller) = false;

  /// load a layer that sees images and rotates queries and keys by places in
  /// two dimensions (Qwen-VL, Pixtral, DINOv3), though the module does not
  /// compute them: each call gets the angles by `ForwardOptions().rotary_cos`
  /// and `rotary_sin`, as `rotary_from_pretrained` makes them. Without this
  /// such layers are refused. Default: false
  TORCH_ARG(bool, rotary_by_caller) = false;

  using Stream = std::ostream*;

  /// where to print what was found, built and loaded. Default: nowhere
  TORCH_ARG(Stream, log) = nullptr;
};

/// The self-attention of one layer of a model that Hugging Face's
/// `save_pretrained` wrote, with its weights: reads `config.json` and the
/// weights (safetensors or PyTorch files, sharded too) of `folder`, and sets
/// every option that the model has: sizes of heads, biases, rotary embedding
/// with its scaling, window by the type of the layer, scale, softcap, norms,
/// dropout. The module is in evaluation, and without the buffer `mask`.
///
/// `layer` counts from 0. Above the attention the file may have any prefix.
///
/// Throws c10::Error if the configuration is of an unknown model, has a field
/// that changes attention in a way that is not known, or does not fit the
/// weights.
///
/// Example:
/// ```
/// auto attention = attention_from_pretrained("Qwen3-0.6B", 5);
/// auto context = attention(hidden_states); // (B, T, hidden_size)
/// ```
TORCH_ATTENTION_API MultiHeadAttention attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// The attention of a layer of the decoder to what the encoder gave, in the
/// same way: of BART, Marian, T5, Whisper and their like.
///
/// Example:
/// ```
/// auto attention = cross_attention_from_pretrained("whisper-tiny", 0);
/// auto output = attention(hidden_states, encoded); // (B, T, d_model)
/// ```
TORCH_ATTENTION_API CrossAttention cross_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// The latent attention of a layer, in the same way: of DeepSeek-V2 and V3,
/// GLM-4 MoE Lite, MiniCPM3 and Youtu. `part` of the options is not read.
///
/// Example:
/// ```
/// auto attention = latent_attention_from_pretrained("DeepSeek-V2-Lite", 0);
/// auto context = attention(hidden_states); // (B, T, hidden_size)
/// ```
TORCH_ATTENTION_API LatentAttention latent_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// The bias by the distance of tokens that T5, mT5 and MPNet share between
/// layers, of the encoder or the decoder that `part` of the options says. Each
/// layer of UMT5 has one of its own: give the layer.
///
/// Example:
/// ```
/// const auto options = PretrainedOptions()
///                          .part(PretrainedPart::kEncoder)
///                          .bias_by_caller(true);
/// auto bias = relative_bias_from_pretrained("t5-small", options);
/// auto attention = attention_from_pretrained("t5-small", 3, options);
/// auto context = attention(x, ForwardOptions().bias(bias(T, T)));
/// ```
TORCH_ATTENTION_API RelativeBias relative_bias_from_pretrained(
    const std::string& folder,
    const PretrainedOptions& options = {});

/// The bias that this layer adds, its own or the shared one.
TORCH_ATTENTION_API RelativeBias relative_bias_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// Cosines and sines of the angles by which the tokens of an image are rotated,
/// each (T, head_dim / 2), for `ForwardOptions`.
struct TORCH_ATTENTION_API RotaryAngles {
  torch::Tensor cos;
  torch::Tensor sin;
  /// int64 on the CPU: 0 and the ends of the windows of patches, for the layers
  /// that see their window alone (Qwen2.5-VL, of which `inspect_pretrained`
  /// says which they are). Undefined for models without windows.
  torch::Tensor cu_seqlens = {};
};

/// The angles of an image of `height` times `width` patches, by their rows and
/// columns, for the layers of a model that sees images (Qwen-VL, GLM-4V,
/// Pixtral, DINOv3, MLCD, Llama 4), as its `config.json` has them. The tokens
/// are in the model's order: class and register tokens too, and the patches in
/// the order in which they are merged and, of Qwen2.5-VL, lie in windows. Of
/// several images put one after the other what this gives for each; of a video
/// for each frame.
///
/// Example:
/// ```
/// const auto options = PretrainedOptions().rotary_by_caller(true);
/// auto attention = attention_from_pretrained("pixtral", 0, options);
/// auto angles = rotary_from_pretrained("pixtral", 24, 32, options);
/// auto context = attention(
///     x, ForwardOptions().rotary_cos(angles.cos).rotary_sin(angles.sin));
/// ```
TORCH_ATTENTION_API RotaryAngles rotary_from_pretrained(
    const std::string& folder,
    int64_t height,
    int64_t width,
    const PretrainedOptions& options = {});

/// The options alone; `path` is the folder or its `config.json`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(options_from_config("Qwen3-0.6B", 5));
/// ```
TORCH_ATTENTION_API MultiHeadAttentionOptions options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part = PretrainedPart::kAuto);

/// Returns the options that `cross_attention_from_pretrained` makes a module
/// of.
TORCH_ATTENTION_API CrossAttentionOptions
cross_options_from_config(const std::string& path, int64_t layer);

/// Returns the options that `latent_attention_from_pretrained` makes a module
/// of.
TORCH_ATTENTION_API LatentAttentionOptions
latent_options_from_config(const std::string& path, int64_t layer);

/// The values of `model_type` that are known, sorted.
TORCH_ATTENTION_API std::vector<std::string> pretrained_model_types();

} // namespace torch_attention
