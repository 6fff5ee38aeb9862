#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/relative_bias.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <string>
#include <vector>

namespace encoder {

class ModelWeights;

/// Differences of BERT, DistilBERT and MPNet, beside attention, whose options
/// our library reads from the configuration.
struct BertConfig {
  /// Reads `config.json`. Throws c10::Error for another model type.
  static BertConfig read(const std::string& folder);

  std::string model_type;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_layers = 12;
  /// Rows of the embedding of positions.
  int64_t max_positions = 512;
  /// Rows before that of the first token: 2 in MPNet.
  int64_t first_position = 0;
  double norm_eps = 1e-12;
  /// "gelu", "gelu_new" or "relu".
  std::string activation = "gelu";
  /// True if an embedding of the kind of text is added, here always of kind 0.
  bool has_token_types = true;
  /// MPNet: scores have a bias by the distance of tokens.
  bool has_relative_bias = false;

  /// The largest number of tokens.
  int64_t context_length() const {
    return max_positions - first_position;
  }
};

/// Multiplies, and adds a bias.
class AffineImpl : public torch::nn::Module {
 public:
  AffineImpl(int64_t in, int64_t out);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  torch::Tensor bias;
};
TORCH_MODULE(Affine);

/// Normalises the last dimension (Ba et al. 2016, "Layer Normalization").
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const BertConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  torch::Tensor bias;

 private:
  double eps_;
};
TORCH_MODULE(Norm);

/// Attention and feed-forward network, each followed by a norm of its sum with
/// what went in.
class BertBlockImpl : public torch::nn::Module {
 public:
  BertBlockImpl(
      const BertConfig& config,
      const torch_attention::MultiHeadAttention& attention);

  /// x (B, T, C), padded, or (N, C), packed; `call` says which, and adds the
  /// bias of MPNet.
  torch::Tensor forward(
      const torch::Tensor& x,
      const torch_attention::ForwardOptions& call);

  torch_attention::MultiHeadAttention attention;
  Norm attention_norm;
  Affine up;
  Affine down;
  Norm output_norm;

 private:
  std::string activation_;
};
TORCH_MODULE(BertBlock);

/// An encoder of BERT's class (Devlin et al. 2019): post-norm blocks that see
/// the whole text. For inference.
///
/// Example:
/// ```
/// Bert model("all-MiniLM-L6-v2");
/// auto hidden = model->forward(ids, lengths); // (B, T, hidden_size)
/// ```
class BertImpl : public torch::nn::Module {
 public:
  /// Takes configuration and weights from a folder that `save_pretrained`
  /// wrote. Throws c10::Error if it is of another model, or they do not fit.
  explicit BertImpl(const std::string& folder);

  /// ids int64 (B, T), padded on the right to the longest sequence, and their
  /// lengths, int64 (B) -> (B, T, C). What comes out for padding means nothing.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& lengths);

  /// Encodes without padding: ids int64 (N) of sequences that lie one after
  /// the other, and where each begins, and the last ends, `cu_seqlens` int64
  /// (B + 1) -> (N, C).
  torch::Tensor forward_packed(
      const torch::Tensor& ids,
      const torch::Tensor& cu_seqlens);

  const BertConfig config;
  torch::Tensor word_embeddings;
  torch::Tensor position_embeddings;
  /// Undefined without `has_token_types`.
  torch::Tensor token_type_embeddings;
  Norm embedding_norm;
  torch::nn::ModuleList blocks;
  /// Empty without `has_relative_bias`.
  torch_attention::RelativeBias relative_bias = nullptr;

 private:
  BertImpl(const std::string& folder, ModelWeights&& weights);
  torch::Tensor embed(const torch::Tensor& ids, const torch::Tensor& positions);
  /// Transforms tokens at `positions`, of texts of up to `longest` tokens.
  torch::Tensor transform(
      const torch::Tensor& ids,
      const torch::Tensor& positions,
      int64_t longest,
      torch_attention::ForwardOptions call);
};
TORCH_MODULE(Bert);

} // namespace encoder
