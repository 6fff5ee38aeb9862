#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/models/language_model.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace torch_attention::models {

/// Options for `Gpt2`. The defaults are those of the smallest, 124M.
struct TORCH_ATTENTION_MODELS_API Gpt2Options {
  /// Returns the options of "124M", "355M", "774M" or "1558M".
  /// Throws c10::Error for another name.
  static Gpt2Options of_size(const std::string& name);

  /// Default: 50257
  TORCH_ARG(int64_t, vocab_size) = 50257;

  /// the largest number of tokens. Default: 1024
  TORCH_ARG(int64_t, context_length) = 1024;

  /// size of a hidden state. Default: 768
  TORCH_ARG(int64_t, emb_dim) = 768;

  /// Default: 12
  TORCH_ARG(int64_t, n_heads) = 12;

  /// Default: 12
  TORCH_ARG(int64_t, n_layers) = 12;

  /// size between the two layers of a feed-forward network. Default: 4 emb_dim
  TORCH_ARG(std::optional<int64_t>, hidden_dim) = std::nullopt;

  /// dropout of embeddings, attention and shortcuts. Default: 0.1
  TORCH_ARG(double, drop_rate) = 0.1;

  /// dropout of embeddings. Default: drop_rate
  TORCH_ARG(std::optional<double>, embedding_drop_rate) = std::nullopt;

  /// dropout of attention weights. Default: drop_rate
  TORCH_ARG(std::optional<double>, attention_drop_rate) = std::nullopt;

  /// Default: 1e-5
  TORCH_ARG(double, norm_eps) = 1e-5;

  /// give the projections of attention a bias. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// as configurations call it: "gelu_new" is the approximation by tanh.
  /// Default: "gelu_new"
  TORCH_ARG(std::string, activation) = "gelu_new";

  /// the head is the token embedding, as in OpenAI's weights. Default: false
  TORCH_ARG(bool, tied) = false;

  /// have a head of its own, unless it is tied. Default: true
  TORCH_ARG(bool, head) = true;

  /// the token that begins a text, which files name. Default: none
  TORCH_ARG(std::optional<int64_t>, bos_token_id) = std::nullopt;

  /// the tokens that end a text. Default: none
  TORCH_ARG(std::vector<int64_t>, eos_token_id) = {};
};

/// Layer norm of the last dimension.
class TORCH_ATTENTION_MODELS_API Gpt2LayerNormImpl : public torch::nn::Module {
 public:
  explicit Gpt2LayerNormImpl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor scale;
  torch::Tensor shift;

 private:
  double eps_;
};
TORCH_MODULE(Gpt2LayerNorm);

/// Two linear layers with an activation between them.
class TORCH_ATTENTION_MODELS_API Gpt2FeedForwardImpl
    : public torch::nn::Module {
 public:
  explicit Gpt2FeedForwardImpl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& x);

  /// layers.0 and layers.2 are linear; the activation has no parameters.
  torch::nn::Sequential layers;

 private:
  std::string activation_;
};
TORCH_MODULE(Gpt2FeedForward);

/// Attention and feed-forward network, each after a norm and with a shortcut.
class TORCH_ATTENTION_MODELS_API Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Options& options);

  /// With this attention from and to `emb_dim`.
  Gpt2BlockImpl(
      const Gpt2Options& options,
      const MultiHeadAttention& attention);

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

  MultiHeadAttention att;
  Gpt2FeedForward ff;
  Gpt2LayerNorm norm1;
  Gpt2LayerNorm norm2;
  torch::nn::Dropout drop_shortcut;

 private:
  torch::Tensor add(const torch::Tensor& x, const torch::Tensor& attended);
};
TORCH_MODULE(Gpt2Block);

/// GPT-2 (Radford et al. 2019), the `GPTModel` of Raschka, "Build a Large
/// Language Model (From Scratch)", chapter 4: the same names, made in the same
/// order, so that `torch::manual_seed` alone gives Python's weights.
///
/// Example:
/// ```
/// torch::manual_seed(123);
/// Gpt2 model(Gpt2Options::of_size("124M"));
/// auto logits = model->forward(ids); // (B, T, 50257)
/// ```
class TORCH_ATTENTION_MODELS_API Gpt2Impl : public LanguageModel {
 public:
  explicit Gpt2Impl(const Gpt2Options& options_);

  /// For weights that are loaded: with this attention in each layer. The other
  /// weights are not initialised.
  Gpt2Impl(
      const Gpt2Options& options_,
      const std::vector<MultiHeadAttention>& attention);

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

  /// The options with which this `Module` was constructed.
  const Gpt2Options options;
  torch::nn::Embedding tok_emb = nullptr;
  torch::nn::Embedding pos_emb = nullptr;
  torch::nn::Dropout drop_emb = nullptr;
  torch::nn::ModuleList trf_blocks;
  Gpt2LayerNorm final_norm = nullptr;
  /// Empty if tied, or without a head.
  torch::nn::Linear out_head = nullptr;

 private:
  /// Makes and draws the attention, too, if it is null.
  Gpt2Impl(
      const Gpt2Options& options_,
      const std::vector<MultiHeadAttention>* attention);

  torch::Tensor embed(const torch::Tensor& ids);
  torch::Tensor head(const torch::Tensor& normed);

  /// `decode` with a cache or a batch of sequences for each layer.
  template <typename LayerCaches>
  torch::Tensor decode_layers(
      const torch::Tensor& ids,
      LayerCaches& layer_caches,
      const DecodeOptions& call);
};
TORCH_MODULE(Gpt2);

/// The GPT-2 of a folder that `save_pretrained` wrote, in evaluation: without a
/// `lm_head` in the file if `tie_word_embeddings` says so. Throws c10::Error as
/// `language_model_from_pretrained` does.
TORCH_ATTENTION_MODELS_API Gpt2 gpt2_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options = {});

/// Writes `config.json` and `model.safetensors` into a folder that is there,
/// from which `gpt2_from_pretrained` and `transformers` load the model.
/// `notes` become further fields of the configuration.
///
/// Throws c10::Error if a file cannot be written, the model has no head, a
/// note has the name of a field that transformers reads, or the attention was
/// given options for which GPT-2's configuration has no field. Nothing is
/// written then.
TORCH_ATTENTION_MODELS_API void save_gpt2(
    Gpt2Impl& model,
    const std::string& folder,
    const std::vector<std::pair<std::string, std::string>>& notes = {});

} // namespace torch_attention::models
