#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/head_norm.h>
#include <torch_attention/nn/modules/indexer.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/latent_attention.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <tuple>

namespace torch_attention {

namespace detail {
class CacheView;
class RotaryTable;
} // namespace detail

/// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): keys and
/// values of all heads are projected from one small latent vector per token;
/// all heads share the rotated part of the key. Only these two are cached:
/// kv_rank + rope_dim numbers per token, and the indexer's key, if there is an
/// indexer.
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

  /// Computes `decode` of new tokens of some sequences of a `BlockCache`: row b
  /// of x (B, T, d_in) belongs to the b-th sequence of the batch. The results
  /// have the bits that a `KVCache` of these sequences gives which keeps all
  /// tokens. The cache has no limit but `max_blocks`; a call for which too few
  /// blocks are free throws c10::Error and leaves it as it was.
  ///
  /// Example:
  /// ```
  /// BlockCache cache(attention->block_cache_options().max_blocks(1024));
  /// const auto a = cache.admit();
  /// auto context = attention->decode(prompt, cache.batch({a})); // (1, T, d)
  /// const auto b = cache.fork(a);
  /// context = attention->decode(tokens, cache.batch({a, b})); // (2, 1, d)
  /// ```
  torch::Tensor decode(
      const torch::Tensor& x,
      const BlockBatch& sequences,
      const DecodeOptions& call = {});

  /// Returns an empty cache for this module, with the current dtype and device
  /// of the weights.
  KVCache make_cache(int64_t batch_size) const;

  /// Returns the options of a `BlockCache` for this module, with the current
  /// dtype and device of the weights.
  BlockCacheOptions block_cache_options() const;

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
  /// Empty without `indexer`.
  Indexer indexer = nullptr;
  torch::nn::Dropout dropout = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})

 private:
  torch::Tensor decode_view(
      const torch::Tensor& x,
      detail::CacheView& cache,
      const DecodeOptions& call);

  /// Null without `rotary`.
  std::shared_ptr<detail::RotaryTable> rotary_table_;
};

/// A `ModuleHolder` for `LatentAttentionImpl`.
TORCH_MODULE(LatentAttention);

} // namespace torch_attention
