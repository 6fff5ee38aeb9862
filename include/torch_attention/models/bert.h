#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>
#include <torch_attention/models/options.h>
#include <torch_attention/models/projection.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/relative_bias.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace torch_attention::models {

/// Options for `Bert`: what differs between BERT, DistilBERT, ELECTRA, MPNet
/// and RoBERTa.
struct TORCH_ATTENTION_MODELS_API BertOptions {
  /// Default: 30522
  TORCH_ARG(int64_t, vocab_size) = 30522;

  /// size of a hidden state. Default: 768
  TORCH_ARG(int64_t, hidden_size) = 768;

  /// size of an embedding, which a linear layer brings to that of a hidden
  /// state, as in ELECTRA. Default: hidden_size, without such a layer
  TORCH_ARG(std::optional<int64_t>, embedding_size) = std::nullopt;

  /// size within a feed-forward network. Default: 3072
  TORCH_ARG(int64_t, intermediate_size) = 3072;

  /// the attention of each layer, `causal(false)`.
  /// Default: none, which is a model without layers
  TORCH_ARG(std::vector<MultiHeadAttentionOptions>, attention) = {};

  /// rows of the embedding of positions. Default: 512
  TORCH_ARG(int64_t, max_positions) = 512;

  /// the padding token after whose number positions are counted, without
  /// padding, as in RoBERTa and MPNet. Default: positions are counted from 0
  TORCH_ARG(std::optional<int64_t>, padding_token) = std::nullopt;

  /// rows of the embedding of a text's kind, of which the first is added; 0 for
  /// none. Default: 2
  TORCH_ARG(int64_t, num_token_types) = 2;

  /// Default: 1e-12
  TORCH_ARG(double, norm_eps) = 1e-12;

  /// as configurations call it. Default: "gelu"
  TORCH_ARG(std::string, activation) = "gelu";

  /// the bias by the distance of tokens that MPNet adds to the scores of each
  /// layer. Default: none
  TORCH_ARG(std::optional<RelativeBiasOptions>, relative_bias) = std::nullopt;
};

/// Layer norm of the last dimension (Ba et al. 2016).
class TORCH_ATTENTION_MODELS_API BertNormImpl : public torch::nn::Module {
 public:
  BertNormImpl(int64_t size, double eps, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  torch::Tensor bias;

 private:
  double eps_;
};
TORCH_MODULE(BertNorm);

/// Attention and feed-forward network, each followed by a norm of its sum with
/// what went in.
class TORCH_ATTENTION_MODELS_API BertBlockImpl : public torch::nn::Module {
 public:
  BertBlockImpl(
      const BertOptions& options,
      const MultiHeadAttention& attention,
      torch::Dtype dtype);

  /// x (B, T, C) or packed (N, C) -> the same shape.
  torch::Tensor forward(const torch::Tensor& x, const ForwardOptions& call);

  /// `forward` and the attention weights (B, H, T, T).
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call);

  MultiHeadAttention attention;
  BertNorm attention_norm;
  Projection up;
  Projection down;
  BertNorm output_norm;

 private:
  torch::Tensor add(const torch::Tensor& x, const torch::Tensor& attended);

  std::string activation_;
};
TORCH_MODULE(BertBlock);

/// An encoder of BERT's kind (Devlin et al. 2019): blocks with norms after each
/// part, in which each token sees the whole text. Without dropout.
///
/// Sizes: `B` texts, `T` tokens of the longest, `N` of all, `C` elements of a
/// hidden state, `H` heads. Token ids are int64 on the model's device.
///
/// Example:
/// ```
/// auto model = bert_from_pretrained("all-MiniLM-L6-v2");
/// auto hidden = model->forward(ids, lengths); // (B, T, C)
/// ```
class TORCH_ATTENTION_MODELS_API BertImpl : public torch::nn::Module {
 public:
  /// Draws the weights: those of matrices with a standard deviation of 0.02.
  explicit BertImpl(const BertOptions& options_);

  /// For weights that are loaded: with this attention in each layer, and this
  /// bias. The other weights are not initialised; their dtype is that of the
  /// attention, and float without layers, unless it is given.
  BertImpl(
      const BertOptions& options_,
      const std::vector<MultiHeadAttention>& attention,
      const RelativeBias& relative_bias_ = nullptr,
      std::optional<torch::Dtype> dtype = std::nullopt);

  /// Draws all weights again but those of attention and the bias.
  void reset_parameters();

  /// ids (B, T), padded on the right with any tokens of the vocabulary, and the
  /// number of tokens of each text, int64 (B), or undefined for T -> (B, T, C).
  /// The hidden states of padding mean nothing.
  torch::Tensor forward(
      const torch::Tensor& ids,
      const torch::Tensor& lengths = {});

  /// Encodes without padding: ids (N) of texts that lie one after the other,
  /// and where each begins, and the last ends, `cu_seqlens` int64 (B + 1)
  /// -> (N, C).
  torch::Tensor forward_packed(
      const torch::Tensor& ids,
      const torch::Tensor& cu_seqlens);

  /// ids (B, T) without padding -> for each number in `layers` the attention
  /// weights of that layer, (B, H, T, T) from queries to keys. No later layer
  /// is computed.
  std::vector<torch::Tensor> attention_weights(
      const torch::Tensor& ids,
      torch::IntArrayRef layers);

  /// The largest number of tokens of a text.
  int64_t context_length() const;

  /// The options with which this `Module` was constructed; `attention` has
  /// those of the layers.
  const BertOptions options;
  torch::Tensor word_embeddings;
  torch::Tensor position_embeddings;
  /// Undefined without token types.
  torch::Tensor token_type_embeddings;
  BertNorm embedding_norm = nullptr;
  /// Empty unless `embedding_size` differs from `hidden_size`.
  Projection embedding_projection = nullptr;
  torch::nn::ModuleList blocks;
  /// Empty without `relative_bias`.
  RelativeBias relative_bias = nullptr;

 private:
  torch::Tensor embed(
      const torch::Tensor& ids,
      const torch::Tensor& begins = {});
  ForwardOptions call_for(int64_t longest, ForwardOptions call);
  torch::Tensor transform(torch::Tensor x, const ForwardOptions& call);
};
TORCH_MODULE(Bert);

/// The encoder of a folder that `save_pretrained` wrote, in evaluation: BERT,
/// CamemBERT, DistilBERT, ELECTRA, MPNet, RoBERTa or XLM-RoBERTa. `head` of the
/// options is not read: encoders have none.
///
/// Throws c10::Error if it is a model of another type, a file is missing, or
/// the weights do not fit the configuration: each has to be used.
TORCH_ATTENTION_MODELS_API Bert bert_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options = {});

/// The values of `model_type` that `bert_from_pretrained` loads, sorted.
TORCH_ATTENTION_MODELS_API std::vector<std::string> bert_types();

} // namespace torch_attention::models
