#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

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

/// The options alone; `path` is the folder or its `config.json`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(options_from_config("Qwen3-0.6B", 5));
/// ```
TORCH_ATTENTION_API MultiHeadAttentionOptions
options_from_config(const std::string& path, int64_t layer);

/// The values of `model_type` that are known, sorted.
TORCH_ATTENTION_API std::vector<std::string> pretrained_model_types();

} // namespace torch_attention
