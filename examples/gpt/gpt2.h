#pragma once

#include "language_model.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace gpt {

/// The sizes of a GPT-2. The defaults are those of the smallest, 124M.
struct Gpt2Config {
  /// Returns the sizes of "124M", "355M", "774M" or "1558M".
  /// Throws c10::Error for another name.
  static Gpt2Config of_size(const std::string& name);

  int64_t vocab_size = 50257;
  int64_t context_length = 1024;
  int64_t emb_dim = 768;
  int64_t n_heads = 12;
  int64_t n_layers = 12;
  /// Size between the two layers of a feed-forward network; 0 for 4 emb_dim.
  int64_t hidden_dim = 0;
  double drop_rate = 0.1;
  double norm_eps = 1e-5;
  bool qkv_bias = false;
  /// True if the head is the token embedding, as in OpenAI's weights.
  bool tied = false;
  /// Tokens that begin and end a text, which files name for `transformers`.
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
};

/// Normalises the last dimension; `scale` and `shift` are Python's names.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t emb_dim, double eps);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor scale;
  torch::Tensor shift;

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

/// Two linear layers with a GELU between them.
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const Gpt2Config& config);
  torch::Tensor forward(const torch::Tensor& x);

  /// layers.0 and layers.2 are linear.
  torch::nn::Sequential layers;
};
TORCH_MODULE(FeedForward);

/// Attention and feed-forward network, each after a norm and beside a shortcut.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(const Gpt2Config& config);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor decode(
      const torch::Tensor& x,
      torch_attention::KVCache& cache,
      const torch_attention::DecodeOptions& call);

  torch_attention::MultiHeadAttention att;
  FeedForward ff;
  LayerNorm norm1;
  LayerNorm norm2;
  torch::nn::Dropout drop_shortcut;

 private:
  torch::Tensor add_feed_forward(const torch::Tensor& x);
};
TORCH_MODULE(TransformerBlock);

/// GPT-2 (Radford et al. 2019), the `GPTModel` of Raschka, "Build a Large
/// Language Model (From Scratch)", chapter 4: the same names, made in the same
/// order, so that `torch::manual_seed` alone gives Python's weights.
///
/// Example:
/// ```
/// torch::manual_seed(123);
/// Gpt2 model(Gpt2Config::of_size("124M"));
/// auto logits = model->forward(ids); // (B, T, 50257)
/// ```
class Gpt2Impl : public LanguageModel {
 public:
  explicit Gpt2Impl(const Gpt2Config& config);

  torch::Tensor forward(const torch::Tensor& ids) override;
  torch::Tensor decode(
      const torch::Tensor& ids,
      Caches& caches,
      const torch_attention::DecodeOptions& call = {}) override;
  Caches make_caches(int64_t batch_size) const override;
  int64_t context_length() const override;
  int64_t vocab_size() const override;

  const Gpt2Config config;
  torch::nn::Embedding tok_emb;
  torch::nn::Embedding pos_emb;
  torch::nn::Dropout drop_emb;
  torch::nn::ModuleList trf_blocks;
  LayerNorm final_norm;
  /// Empty if tied.
  torch::nn::Linear out_head = nullptr;

 private:
  torch::Tensor head(const torch::Tensor& x);
};
TORCH_MODULE(Gpt2);

/// Returns the GPT-2 of a folder that `save_pretrained` wrote, in evaluation.
std::shared_ptr<Gpt2Impl> load_gpt2(
    const std::string& folder,
    torch::Dtype dtype = torch::kFloat);

/// Writes a folder that `load_gpt2` and `transformers` read: `config.json` and
/// `model.safetensors`. `bytes_as_tokens` is noted in the configuration.
void save_gpt2(
    Gpt2Impl& model,
    const std::string& folder,
    bool bytes_as_tokens = false);

} // namespace gpt
