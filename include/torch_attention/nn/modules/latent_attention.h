#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/head_norm.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/latent_attention.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <tuple>

namespace torch_attention {

namespace detail {
class RotaryTable;
} // namespace detail

/// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): keys and
/// values of all heads are made of one small latent vector for each token,
/// beside a rotated part of the key that all heads share. The cache holds
/// these alone: kv_rank + rope_dim numbers for each token.
///
/// Its parameters are named as those of `DeepseekV3Attention` of
/// `transformers`, so that `load_weights` takes them as they are.
///
/// Example:
/// ```
/// LatentAttention attention(LatentAttentionOptions(
///     /*d_in=*/2048, /*d_out=*/2048, /*context_length=*/4096,
///     /*num_heads=*/16));
/// auto context = attention->forward(torch::rand({2, 6, 2048})); // (2, 6,
/// 2048)
/// ```
class TORCH_ATTENTION_API LatentAttentionImpl
    : public torch::nn::Cloneable<LatentAttentionImpl> {
 public:
  LatentAttentionImpl(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      int64_t num_heads);
  explicit LatentAttentionImpl(const LatentAttentionOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) with T <= context_length -> (B, T, d_out). `call` says
  /// which keys are padding or hidden, and where the tokens stand.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// `forward` and the attention weights (B, num_heads, T, T), after dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// `forward` of new tokens after those that are in `cache`, which takes in
  /// theirs, as `MultiHeadAttention` has it: x (B, T, d_in) -> (B, T, d_out).
  ///
  /// Few tokens attend to the latent vectors as they are: their queries are
  /// multiplied by the matrix that would make keys of them, and the context by
  /// the one that would make values. From the number of tokens on that makes it
  /// worth while, as in a prompt, keys and values are formed.
  ///
  /// Throws c10::Error if x or the cache do not fit, a sequence would become
  /// longer than `context_length`, for `causal(false)`, and in training with
  /// dropout. A call that throws leaves the cache as it was.
  ///
  /// Example:
  /// ```
  /// auto cache = attention->make_cache(/*batch_size=*/1);
  /// auto context = attention->decode(prompt, cache); // (1, T, d_out)
  /// context = attention->decode(token, cache); // (1, 1, d_out)
  /// ```
  torch::Tensor decode(
      const torch::Tensor& x,
      KVCache& cache,
      const DecodeOptions& call = {});

  /// An empty cache that fits, of the dtype and on the device of the weights.
  KVCache make_cache(int64_t batch_size) const;

  /// The options with which this `Module` was constructed.
  LatentAttentionOptions options;

  /// Empty with `query_rank`.
  torch::nn::Linear q_proj = nullptr;
  /// These three are empty without.
  torch::nn::Linear q_a_proj = nullptr;
  HeadNorm q_a_layernorm = nullptr;
  torch::nn::Linear q_b_proj = nullptr;
  torch::nn::Linear kv_a_proj_with_mqa = nullptr;
  HeadNorm kv_a_layernorm = nullptr;
  torch::nn::Linear kv_b_proj = nullptr;
  torch::nn::Linear o_proj = nullptr;
  torch::nn::Dropout dropout = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})

 private:
  std::shared_ptr<detail::RotaryTable> rotary_table_;
};

/// A `ModuleHolder` for `LatentAttentionImpl`.
TORCH_MODULE(LatentAttention);

} // namespace torch_attention
