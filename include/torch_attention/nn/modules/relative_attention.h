#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/relative_attention.h>

#include <cstdint>
#include <iosfwd>
#include <tuple>

namespace torch_attention {

/// Multi-head attention whose scores add products with vectors of the distance
/// between query and key: learned ones (Shaw et al. 2018, "Self-Attention with
/// Relative Position Representations"; wav2vec2-BERT), projected sinusoids (Dai
/// et al. 2019, "Transformer-XL"; conformers such as Parakeet), learned ones of
/// rows and columns (Li et al. 2022, "MViTv2"; SAM), or learned ones that are
/// projected to keys and queries (He et al. 2020, "DeBERTa").
///
/// Takes any number of tokens, but with rows and columns those of the image.
/// The products are formed as a bias of the size of the scores, so memory grows
/// with T x T; the attention itself is computed by the chosen kernel.
///
/// Example:
/// ```
/// RelativeAttention attention(RelativeAttentionOptions(
///     /*d_in=*/1024, /*d_out=*/1024, /*num_heads=*/8));
/// auto context = attention->forward(torch::rand({2, 6, 1024})); // same shape
/// ```
class TORCH_ATTENTION_API RelativeAttentionImpl
    : public torch::nn::Cloneable<RelativeAttentionImpl> {
 public:
  RelativeAttentionImpl(int64_t d_in, int64_t d_out, int64_t num_heads);
  explicit RelativeAttentionImpl(const RelativeAttentionOptions& options_);

  void reset() override;
  /// Draws the projections as `torch::nn::Linear` does, learned vectors and
  /// embeddings as `torch::nn::Embedding`, u and v from Xavier's uniform
  /// distribution, and vectors of rows and columns from N(0, 0.02^2).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) -> (B, T, d_out). `call` has masks and padding of the keys,
  /// and a bias. Its `cu_seqlens`, `positions`, `rotary_cos` and
  /// `visible_blocks` are refused: distances are those of the tokens' indices.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (B, num_heads,
  /// T, T), after dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  RelativeAttentionOptions options;

  torch::nn::Linear W_query = nullptr;
  torch::nn::Linear W_key = nullptr;
  torch::nn::Linear W_value = nullptr;
  torch::nn::Linear out_proj = nullptr;
  /// Learned vectors (left + right + 1, head_dim), which all heads share; empty
  /// with sinusoids.
  torch::nn::Embedding distance_embedding = nullptr;
  /// Projects sinusoids (d_in) to the heads, without a bias; empty with learned
  /// vectors.
  torch::nn::Linear W_pos = nullptr;
  /// (num_heads, head_dim), added to queries that are multiplied with keys;
  /// undefined with learned vectors.
  torch::Tensor pos_bias_u;
  /// (num_heads, head_dim), added to queries that are multiplied with
  /// distances; undefined with learned vectors.
  torch::Tensor pos_bias_v;
  /// With rows and columns, (2 table_height - 1, head_dim): the vectors of the
  /// distances in rows, first that from the first row to a key in the last one.
  /// All heads share them.
  torch::Tensor rel_pos_h;
  /// With rows and columns, (2 table_width - 1, head_dim).
  torch::Tensor rel_pos_w;
  /// With disentangled attention, (2 n, d_in) for n = `buckets`, or
  /// `max_distance` without: the embeddings of the distances t - s from -n to
  /// n - 1, after the LayerNorm that some models have for them.
  torch::Tensor relative_embeddings;
  /// Project embeddings to keys and queries; empty if they share `W_key` and
  /// `W_query`.
  torch::nn::Linear W_pos_key = nullptr;
  torch::nn::Linear W_pos_query = nullptr;
  torch::nn::Dropout dropout = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `RelativeAttentionImpl`.
TORCH_MODULE(RelativeAttention);

} // namespace torch_attention
