#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>

#include <cstdint>
#include <optional>

namespace torch_attention::models {

/// Options for `language_model_from_pretrained` and its like.
///
/// Example:
/// ```
/// auto model = language_model_from_pretrained(
///     "Qwen3-0.6B", PretrainedModelOptions().dtype(torch::kBFloat16));
/// ```
struct TORCH_ATTENTION_MODELS_API PretrainedModelOptions {
  /// dtype of the weights. Default: torch::kFloat
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat;

  /// load only so many layers, the first ones. Default: all
  TORCH_ARG(std::optional<int64_t>, num_layers) = std::nullopt;

  /// load the head, which makes logits of hidden states. Files of a model's
  /// body have none; without it `forward` and `decode` throw c10::Error, except
  /// in models whose head is tied to the embedding.
  /// Default: true
  TORCH_ARG(bool, head) = true;
};

} // namespace torch_attention::models
