#pragma once

#include "language_model.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace gpt {

class FolderWeights;

/// Differences of models of Llama's class, beside attention, whose options our
/// library reads from the configuration.
struct LlamaConfig {
  /// Reads `config.json` of Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 or
  /// Gemma 3. Sizes that it may lack are those of the weights.
  /// Throws c10::Error for another model type.
  static LlamaConfig read(
      const std::string& folder,
      const FolderWeights& weights);

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t context_length = 0;
  double norm_eps = 1e-6;
  bool mlp_bias = false;
  /// True if the head is the token embedding.
  bool tied = false;
  /// "silu" or "gelu_pytorch_tanh".
  std::string activation = "silu";
  /// Gemma: embeddings are multiplied by sqrt(hidden_size), and norms multiply
  /// by 1 + weight.
  bool is_gemma = false;
  /// Gemma 2 and 3: attention and feed-forward network have norms after them,
  /// too.
  bool has_norms_after = false;
  /// Gemma 2: logits become softcap * tanh(logits / softcap).
  std::optional<double> logit_softcap;
};

/// Divides by the root of the mean square of the last dimension, in float32,
/// rounded once.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(const LlamaConfig& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;

 private:
  double eps_;
  bool unit_offset_;
};
TORCH_MODULE(RmsNorm);

/// A linear layer whose weights are not drawn, since they are loaded.
class ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(int64_t in, int64_t out, bool has_bias, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  /// Undefined without a bias.
  torch::Tensor bias;
};
TORCH_MODULE(Projection);

/// A feed-forward network with a gate (SwiGLU, Shazeer 2020; GeGLU in Gemma).
class GatedFeedForwardImpl : public torch::nn::Module {
 public:
  GatedFeedForwardImpl(const LlamaConfig& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  Projection gate_proj;
  Projection up_proj;
  Projection down_proj;

 private:
  bool silu_;
};
TORCH_MODULE(GatedFeedForward);

/// Attention and feed-forward network, with norms and shortcuts.
class LlamaBlockImpl : public torch::nn::Module {
 public:
  LlamaBlockImpl(
      const LlamaConfig& config,
      const torch_attention::MultiHeadAttention& attention,
      torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor decode(
      const torch::Tensor& x,
      torch_attention::KVCache& cache,
      const torch_attention::DecodeOptions& call);

  RmsNorm input_layernorm;
  torch_attention::MultiHeadAttention self_attn;
  RmsNorm post_attention_layernorm;
  GatedFeedForward mlp;
  /// Empty without `has_norms_after`.
  RmsNorm pre_feedforward_layernorm = nullptr;
  RmsNorm post_feedforward_layernorm = nullptr;

 private:
  /// Adds the output of attention to x, then that of the network.
  torch::Tensor add(const torch::Tensor& x, const torch::Tensor& attended);
};
TORCH_MODULE(LlamaBlock);

/// A decoder of Llama's class: RMS norms, a gated feed-forward network, grouped
/// heads, rotary positions. Its parameters have the names of `transformers`.
///
/// Example:
/// ```
/// auto model = load_llama("Qwen3-0.6B", torch::kBFloat16);
/// auto logits = model->forward(ids); // (B, T, V)
/// ```
class LlamaImpl : public LanguageModel {
 public:
  /// Takes configuration and attention from the folder, and the rest from its
  /// `weights`.
  LlamaImpl(
      const std::string& folder,
      FolderWeights& weights,
      torch::Dtype dtype);

  torch::Tensor forward(const torch::Tensor& ids) override;
  torch::Tensor decode(
      const torch::Tensor& ids,
      Caches& caches,
      const torch_attention::DecodeOptions& call = {}) override;
  Caches make_caches(int64_t batch_size) const override;
  int64_t context_length() const override;
  int64_t vocab_size() const override;

  const LlamaConfig config;
  Projection embed_tokens;
  torch::nn::ModuleList layers;
  RmsNorm norm;
  /// Empty if tied.
  Projection lm_head = nullptr;

 private:
  torch::Tensor embed(const torch::Tensor& ids);
  torch::Tensor head(const torch::Tensor& x);
};
TORCH_MODULE(Llama);

/// Returns whether `load_llama` knows a `model_type`.
bool is_llama_like(const std::string& model_type);

/// Returns the model of a folder that `save_pretrained` wrote, in evaluation.
std::shared_ptr<LlamaImpl> load_llama(
    const std::string& folder,
    torch::Dtype dtype = torch::kFloat);

} // namespace gpt
