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

/// Selects one of several attention modules that a model has in each layer.
enum class PretrainedPart {
  /// The only part; in models that generate text and see images, the text.
  kAuto,
  /// Parts of a model with an encoder and a decoder: BART, T5, Whisper.
  kEncoder,
  kDecoder,
  /// Parts of a model for text and images or sound: CLIP, LLaVA, Qwen2-Audio.
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

  /// largest number of tokens. Default: from the configuration
  TORCH_ARG(std::optional<int64_t>, context_length) = std::nullopt;

  /// folder of a LoRA adapter that PEFT saved: each weight W that it changes is
  /// W + B A * scale, computed in float32. Default: none
  TORCH_ARG(std::string, adapter) = "";

  /// part of the model. Default: PretrainedPart::kAuto
  TORCH_ARG(PretrainedPart, part) = PretrainedPart::kAuto;

  /// load layers of models that add a relative position bias to the scores (T5,
  /// MPNet). The module does not compute it: pass it to each call by
  /// `ForwardOptions().bias`. Without this option such models are refused.
  /// Default: false
  TORCH_ARG(bool, bias_by_caller) = false;

  /// load layers of image encoders that rotate queries and keys by positions in
  /// two dimensions (Qwen-VL, Pixtral, DINOv3). The module does not compute the
  /// angles: pass those of `rotary_from_pretrained` to each call by
  /// `ForwardOptions().rotary_cos` and `rotary_sin`. Without this option such
  /// layers are refused. Default: false
  TORCH_ARG(bool, rotary_by_caller) = false;

  using Stream = std::ostream*;

  /// stream for a log of what was found, built and loaded. Default: none
  TORCH_ARG(Stream, log) = nullptr;
};

/// Loads the self-attention of one layer of a model that Hugging Face's
/// `save_pretrained` wrote. Reads `config.json` and the weights (safetensors or
/// PyTorch files, also sharded ones) in `folder`, and sets every option that
/// the model uses: head sizes, biases, rotary embedding with its scaling,
/// window by the type of the layer, scale, softcap, norms, dropout. The module
/// is in evaluation mode and has no buffer `mask`.
///
/// `layer` counts from 0. Keys in the file may have any prefix.
///
/// Throws c10::Error if the model is unknown, if the configuration has a field
/// that changes attention in an unknown way, or if it does not fit the weights.
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

/// Loads a decoder layer's attention to the output of the encoder, as
/// `attention_from_pretrained` loads self-attention: BART, Marian, T5, Whisper
/// and similar models.
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

/// Loads the latent attention of a layer, as `attention_from_pretrained` loads
/// other attention: DeepSeek-V2 and V3, GLM-4 MoE Lite, MiniCPM3 and Youtu.
/// Ignores the option `part`.
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

/// Loads the relative position bias that the layers of T5, mT5 and MPNet share,
/// for the encoder or the decoder as selected by the option `part`. In UMT5
/// each layer has its own: pass the layer as well.
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

/// Loads the relative position bias of this layer, its own or the shared one.
TORCH_ATTENTION_API RelativeBias relative_bias_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// Cosines and sines of the rotary angles for the tokens of an image, each
/// (T, head_dim / 2), for `ForwardOptions`.
struct TORCH_ATTENTION_API RotaryAngles {
  torch::Tensor cos;
  torch::Tensor sin;
  /// int64 on the CPU: 0 and the ends of the windows of patches, for layers
  /// that attend only within windows (Qwen2.5-VL; `inspect_pretrained` reports
  /// which layers do). Undefined for models without windows.
  torch::Tensor cu_seqlens = {};
};

/// Computes the rotary angles of an image of `height` times `width` patches, by
/// their rows and columns, for the layers of an image encoder (Qwen-VL, GLM-4V,
/// Pixtral, DINOv3, MLCD, Llama 4), as its `config.json` describes them. Tokens
/// are in the order of the model, including class and register tokens; patches
/// are in the order in which they are merged and, in Qwen2.5-VL, grouped into
/// windows. Concatenate the results for several images, or for the frames of a
/// video.
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

/// Returns only the options of the module; `path` is the folder or its
/// `config.json`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(options_from_config("Qwen3-0.6B", 5));
/// ```
TORCH_ATTENTION_API MultiHeadAttentionOptions options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part = PretrainedPart::kAuto);

/// Returns the options of the module that `cross_attention_from_pretrained`
/// makes.
TORCH_ATTENTION_API CrossAttentionOptions
cross_options_from_config(const std::string& path, int64_t layer);

/// Returns the options of the module that `latent_attention_from_pretrained`
/// makes.
TORCH_ATTENTION_API LatentAttentionOptions
latent_options_from_config(const std::string& path, int64_t layer);

/// Returns the supported values of `model_type`, sorted.
TORCH_ATTENTION_API std::vector<std::string> pretrained_model_types();

} // namespace torch_attention
