#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/models/language_model.h>
#include <torch_attention/models/projection.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace torch_attention::models {

/// Options for `Llama`: what differs between Llama, Mistral, Qwen2, Qwen3 and
/// Gemma.
struct TORCH_ATTENTION_MODELS_API LlamaOptions {
  /// Default: 32000
  TORCH_ARG(int64_t, vocab_size) = 32000;

  /// size of a hidden state. Default: 4096
  TORCH_ARG(int64_t, hidden_size) = 4096;

  /// size within a feed-forward network. Default: 11008
  TORCH_ARG(int64_t, intermediate_size) = 11008;

  /// the attention of each layer: heads, rotary positions, windows.
  /// Default: none, which is a model without layers
  TORCH_ARG(std::vector<MultiHeadAttentionOptions>, attention) = {};

  /// Default: 1e-6
  TORCH_ARG(double, norm_eps) = 1e-6;

  /// give the feed-forward networks biases. Default: false
  TORCH_ARG(bool, mlp_bias) = false;

  /// as configurations call it: "silu", or "gelu_pytorch_tanh", the
  /// approximation by tanh.
  /// Default: "silu"
  TORCH_ARG(std::string, activation) = "silu";

  /// the head is the token embedding. Default: false
  TORCH_ARG(bool, tied) = false;

  /// have a head of its own, unless it is tied. Default: true
  TORCH_ARG(bool, head) = true;

  /// multiply embeddings by sqrt(hidden_size), and let norms multiply by
  /// 1 + weight, as Gemma does. Default: false
  TORCH_ARG(bool, gemma) = false;

  /// have norms after attention and feed-forward network, too, as Gemma 2 and 3
  /// do. Default: false
  TORCH_ARG(bool, norms_after) = false;

  /// logits become c * tanh(logits / c), as in Gemma 2. Default: they do not
  TORCH_ARG(std::optional<double>, logit_softcap) = std::nullopt;
};

/// Root mean square norm of the last dimension (Zhang and Sennrich 2019).
class TORCH_ATTENTION_MODELS_API LlamaNormImpl : public torch::nn::Module {
 public:
  LlamaNormImpl(const LlamaOptions& options, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;

 private:
  double eps_;
  bool unit_offset_;
};
TORCH_MODULE(LlamaNorm);

/// A feed-forward network with a gate (SwiGLU, Shazeer 2020; GeGLU in Gemma).
class TORCH_ATTENTION_MODELS_API LlamaFeedForwardImpl
    : public torch::nn::Module {
 public:
  LlamaFeedForwardImpl(const LlamaOptions& options, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  Projection gate_proj;
  Projection up_proj;
  Projection down_proj;

 private:
  std::string activation_;
};
TORCH_MODULE(LlamaFeedForward);

/// Attention and feed-forward network, with norms and shortcuts.
class TORCH_ATTENTION_MODELS_API LlamaBlockImpl : public torch::nn::Module {
 public:
  LlamaBlockImpl(
      const LlamaOptions& options,
      const MultiHeadAttention& attention,
      torch::Dtype dtype);

  /// x (B, T, C) -> (B, T, C).
  torch::Tensor forward(const torch::Tensor& x);

  /// `forward` and the attention weights (B, H, T, T).
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x);

  /// `forward` of tokens after those in `cache`.
  torch::Tensor decode(
      const torch::Tensor& x,
      KVCache& cache,
      const DecodeOptions& call);
  torch::Tensor decode(
      const torch::Tensor& x,
      const BlockBatch& sequences,
      const DecodeOptions& call);

  LlamaNorm input_layernorm;
  MultiHeadAttention self_attn;
  LlamaNorm post_attention_layernorm;
  LlamaFeedForward mlp;
  /// Empty without `norms_after`.
  LlamaNorm pre_feedforward_layernorm = nullptr;
  LlamaNorm post_feedforward_layernorm = nullptr;

 private:
  torch::Tensor add(const torch::Tensor& x, const torch::Tensor& attended);
};
TORCH_MODULE(LlamaBlock);

/// A decoder of Llama's kind (Touvron et al. 2023): RMS norms, gated
/// feed-forward networks, grouped heads, rotary positions. Its parameters have
/// the names of `transformers`, but for those within `self_attn`.
///
/// Example:
/// ```
/// const auto attention = MultiHeadAttentionOptions(256, 256, 1024, 4)
///                            .num_kv_heads(2)
///                            .rotary(RotaryOptions());
/// Llama model(LlamaOptions().hidden_size(256).attention({attention}));
/// auto logits = model->forward(ids); // (B, T, 32000)
/// ```
class TORCH_ATTENTION_MODELS_API LlamaImpl : public LanguageModel {
 public:
  /// Draws the weights: those of matrices with a standard deviation of 0.02.
  explicit LlamaImpl(const LlamaOptions& options_);

  /// For weights that are loaded: with this attention in each layer. The other
  /// weights are not initialised; their dtype is that of the attention, and
  /// float without layers, unless it is given.
  LlamaImpl(
      const LlamaOptions& options_,
      const std::vector<MultiHeadAttention>& attention,
      std::optional<torch::Dtype> dtype = std::nullopt);

  /// Draws all weights again but those of attention.
  void reset_parameters();

  torch::Tensor forward(const torch::Tensor& ids) override;
  torch::Tensor decode(
      const torch::Tensor& ids,
      Caches& caches,
      const DecodeOptions& call = {}) override;
  torch::Tensor decode(
      const torch::Tensor& ids,
      SequenceCaches& caches,
      const std::vector<int64_t>& sequences,
      const DecodeOptions& call = {}) override;
  torch::Tensor hidden_states(const torch::Tensor& ids) override;
  std::vector<torch::Tensor> attention_weights(
      const torch::Tensor& ids,
      torch::IntArrayRef layers) override;
  Caches make_caches(int64_t batch_size) const override;
  SequenceCaches make_sequence_caches(
      const SequenceCachesOptions& cache_options = {}) const override;
  int64_t context_length() const override;
  int64_t vocab_size() const override;

  /// The options with which this `Module` was constructed; `attention` has
  /// those of the layers.
  const LlamaOptions options;
  Projection embed_tokens = nullptr;
  torch::nn::ModuleList layers;
  LlamaNorm norm = nullptr;
  /// Empty if tied, or without a head.
  Projection lm_head = nullptr;

 private:
  torch::Tensor embed(const torch::Tensor& ids);
  torch::Tensor head(const torch::Tensor& normed);

  /// `decode` with a cache or a batch of sequences for each layer.
  template <typename LayerCaches>
  torch::Tensor decode_layers(
      const torch::Tensor& ids,
      LayerCaches& layer_caches,
      const DecodeOptions& call);
};
TORCH_MODULE(Llama);

/// The model of a folder that `save_pretrained` wrote, in evaluation: of Llama,
/// Mistral, Qwen2, Qwen3 or Gemma 1 to 3. Throws c10::Error as
/// `language_model_from_pretrained` does.
TORCH_ATTENTION_MODELS_API Llama llama_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options = {});

} // namespace torch_attention::models
