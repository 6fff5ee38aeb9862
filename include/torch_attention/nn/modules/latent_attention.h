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
/// values of all heads are projected from one small latent vector per token;
/// all heads share the rotated part of the key. Only these two are cached:
/// kv_rank + rope_dim numbers per token.
///
/// Its parameters are named as in `DeepseekV3Attention` of `transformers`, so
/// that `load_weights` needs no layout.
///
/// Example:
/// ```
/// LatentAttention attention(LatentAttentionOptions(
///     /*d_in=*/2048, /*d_out=*/2048, /*context_length=*/4096,
///     /*num_heads=*/16));
/// auto context = attention->forward(torch::rand({2, 6, 2048})); // same shape
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

  /// x (B, T, d_in) with T <= context_length -> (B, T, d_out). `call` has masks
  /// and padding of the keys, and positions.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (B, num_heads,
  /// T, T), after dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Computes `forward` of new tokens, which also attend to the tokens in
  /// `cache`, and appends them to it: x (B, T, d_in) -> (B, T, d_out).
  ///
  /// A few new tokens attend directly to the cached latent vectors: `kv_b_proj`
  /// is applied to their queries and to the context instead of to all cached
  /// tokens. For many new tokens, such as a prompt, keys and values are formed,
  /// which then takes fewer operations.
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

  /// Returns an empty cache for this module, with the current dtype and device
  /// of the weights.
  KVCache make_cache(int64_t batch_size) const;

  /// The options with which this `Module` was constructed.
  LatentAttentionOptions options;

  /// Empty with `query_rank`.
  torch::nn::Linear q_proj = nullptr;
  /// `q_a_proj`, `q_a_layernorm` and `q_b_proj` are empty without `query_rank`.
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
