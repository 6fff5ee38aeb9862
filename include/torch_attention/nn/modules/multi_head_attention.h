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
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <tuple>

namespace torch_attention {

namespace detail {
class CacheView;
class Partition;
struct PartitionAccess;
class RotaryTable;
} // namespace detail

/// Causal multi-head self-attention with weight splits; Python's
/// `MultiHeadAttention`.
///
/// The buffer `mask` (context_length, context_length) is Python's float upper
/// triangle. It exists only for the state dict: `options.causal()` decides
/// which keys are hidden, so editing the buffer has no effect.
///
/// Example:
/// ```
/// MultiHeadAttention attention(
///     /*d_in=*/768, /*d_out=*/768, /*context_length=*/1024, /*dropout=*/0.1,
///     /*num_heads=*/12);
/// auto context = attention->forward(torch::rand({2, 6, 768})); // (2, 6, 768)
/// ```
class TORCH_ATTENTION_API MultiHeadAttentionImpl
    : public torch::nn::Cloneable<MultiHeadAttentionImpl> {
 public:
  MultiHeadAttentionImpl(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      double dropout_p,
      int64_t num_heads,
      bool qkv_bias = false);
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options_);

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
  /// `cache`, and appends their keys and values to it: x (B, T, d_in), a prompt
  /// or the next tokens, -> (B, T, d_out). Decoding a sequence in parts gives
  /// the output of `forward` for all of it. If prompts differ in length, padded
  /// right or left, `call` has the lengths; padding is not cached, and its
  /// outputs are meaningless.
  ///
  /// Records no gradients, as under `torch::NoGradGuard`: neither cache nor
  /// result is part of an autograd graph. Computes attention in the cache's
  /// dtype.
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

  /// Returns an empty cache for this module: with its `context_length`,
  /// `window` or `chunk`, and the current dtype and device of the weights.
  /// Memory is allocated as tokens are added.
  KVCache make_cache(int64_t batch_size) const;

  /// Returns the options of a `BlockCache` for this module, with the current
  /// dtype and device of the weights.
  BlockCacheOptions block_cache_options() const;

  /// The options with which this `Module` was constructed.
  MultiHeadAttentionOptions options;

  /// Size of each head's query and key.
  int64_t head_dim = 0;

  torch::nn::Linear W_query = nullptr;
  torch::nn::Linear W_key = nullptr;
  torch::nn::Linear W_value = nullptr;
  /// Empty for `out_proj(false)`.
  torch::nn::Linear out_proj = nullptr;
  /// Empty without `qk_norm`.
  HeadNorm q_norm = nullptr;
  HeadNorm k_norm = nullptr;
  /// Empty without `out_norm`.
  HeadNorm out_norm = nullptr;
  /// Empty without `output_gate`.
  torch::nn::Linear W_gate = nullptr;
  /// (num_heads); undefined without `sinks`.
  torch::Tensor sinks;
  /// (head_dim); undefined without `query_scale`.
  torch::Tensor query_scale;
  torch::nn::Dropout dropout = nullptr;
  /// Undefined for `register_mask(false)`.
  torch::Tensor mask;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})

 private:
  friend detail::PartitionAccess;

  torch::Tensor decode_view(
      const torch::Tensor& x,
      detail::CacheView& cache,
      const DecodeOptions& call);

  /// Which heads (distributed/tensor_parallel.h) or tokens
  /// (distributed/sequence_parallel.h) this process computes; all by default.
  std::shared_ptr<const detail::Partition> partition_;

  /// Null without `rotary`.
  std::shared_ptr<detail::RotaryTable> rotary_table_;
};

/// A `ModuleHolder` for `MultiHeadAttentionImpl`.
TORCH_MODULE(MultiHeadAttention);

} // namespace torch_attention
