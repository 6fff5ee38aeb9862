#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/longformer_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/relative_attention.h>
#include <torch_attention/nn/modules/relative_bias.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/cross_attention.h>
#include <torch_attention/nn/options/image_windows.h>
#include <torch_attention/nn/options/latent_attention.h>
#include <torch_attention/nn/options/relative_attention.h>

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

  /// load layers of models that add a bias or a mask of their own to the
  /// scores: by the distance of tokens (T5, MPNet, Swin), by places on a
  /// page (LayoutLMv3), by the hidden states (WavLM). The module does not
  /// compute it: pass it to each call by `ForwardOptions().bias`. Without this
  /// option such layers are refused. Default: false
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
/// and similar models. Loads as well a layer's attention to a context that the
/// model makes of its input: the smaller images of SegFormer and PVT, the
/// inputs of a Perceiver. The caller makes this context.
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
/// other attention: DeepSeek-V2 to V3.2, GLM-5, GLM-4 MoE Lite, MiniCPM3 and
/// Youtu.
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

/// Loads the attention of a layer whose scores add products with relative
/// positions, as `attention_from_pretrained` loads other attention: encoders of
/// sound such as wav2vec2-BERT, Parakeet, SeamlessM4T and Granite Speech.
/// Ignores the option `context_length`.
///
/// Example:
/// ```
/// auto attention = relative_attention_from_pretrained("w2v-bert-2.0", 0);
/// auto context = attention(hidden_states); // (B, T, hidden_size)
/// ```
TORCH_ATTENTION_API RelativeAttention relative_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// Loads the attention of a layer that sees a window beside global tokens, as
/// `attention_from_pretrained` loads other attention: Longformer, and the
/// encoder of LED. Each call gives the global tokens, if any. Ignores the
/// option `context_length`.
///
/// Example:
/// ```
/// auto attention =
///     longformer_attention_from_pretrained("longformer-base-4096", 0);
/// auto is_global = torch::zeros({B, T}, torch::kBool);
/// is_global.select(1, 0).fill_(true); // the first token of each text
/// auto context = attention(
///     hidden_states, ForwardOptions().global_tokens(is_global));
/// ```
TORCH_ATTENTION_API LongformerAttention longformer_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// Loads the relative position bias that the layers of T5, mT5, MPNet,
/// Pix2Struct and UDOP's decoder share, for the encoder or the decoder as
/// selected by the option `part`. In UMT5 each layer has its own: pass the
/// layer as well.
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

/// Loads the bias of a layer that attends within windows of an image (Swin,
/// Donut's encoder, MaskFormer's Swin, CLAP's encoder of sound), for windows of
/// the size in the configuration.
///
/// Example:
/// ```
/// const auto options = PretrainedOptions().bias_by_caller(true);
/// auto attention = attention_from_pretrained("swin-tiny", 1, options);
/// auto bias = window_bias_from_pretrained("swin-tiny", 1);
/// auto windows = *windows_from_config("swin-tiny", 1);
/// auto context = attention(
///     functional::to_image_windows(x, windows), // x (B, H, W, C)
///     ForwardOptions().bias(bias()).mask(
///         functional::image_window_mask(B, H, W, windows)));
/// auto image = functional::from_image_windows(context, H, W, windows);
/// ```
TORCH_ATTENTION_API WindowBias window_bias_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options = {});

/// Returns the windows of an image within which a layer attends, for
/// `functional::to_image_windows`; none if it sees the whole image. `path` is
/// the folder or its `config.json`. As whole models, Swin and its followers
/// have no shift where a side of the image is not larger than the window; as
/// backbones of other models they have it for every image.
TORCH_ATTENTION_API std::optional<ImageWindowOptions> windows_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part = PretrainedPart::kAuto);

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

/// Returns the options of the module that `relative_attention_from_pretrained`
/// makes.
TORCH_ATTENTION_API RelativeAttentionOptions relative_options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part = PretrainedPart::kAuto);

/// Returns the options of the module that
/// `longformer_attention_from_pretrained` makes.
TORCH_ATTENTION_API LongformerAttentionOptions longformer_options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part = PretrainedPart::kAuto);

/// Returns the supported values of `model_type`, sorted.
TORCH_ATTENTION_API std::vector<std::string> pretrained_model_types();

} // namespace torch_attention
