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
#include <torch_attention/nn/options/cross_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <tuple>

namespace torch_attention {

namespace detail {
class Partition;
struct PartitionAccess;
} // namespace detail

/// Multi-head attention of the tokens of one sequence to the tokens of another,
/// such as from a decoder to the output of its encoder (Vaswani et al. 2017,
/// section 3.2.3). Its parameters are named as in `MultiHeadAttention`.
///
/// Example:
/// ```
/// CrossAttention attention(CrossAttentionOptions(
///     /*d_in=*/512, /*d_context=*/768, /*d_out=*/512, /*num_heads=*/8));
/// auto output = attention->forward(x, encoded); // (B, T, 512)
/// ```
class TORCH_ATTENTION_API CrossAttentionImpl
    : public torch::nn::Cloneable<CrossAttentionImpl> {
 public:
  CrossAttentionImpl(
      int64_t d_in,
      int64_t d_context,
      int64_t d_out,
      int64_t num_heads);
  explicit CrossAttentionImpl(const CrossAttentionOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) and context (B, S, d_context) -> (B, T, d_out). `call` has
  /// masks and padding of the context's tokens.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const torch::Tensor& context,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (B, num_heads,
  /// T, S), after dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const torch::Tensor& context,
      const ForwardOptions& call = {});

  /// Returns the keys and values of a context (B, S, d_context), projected once
  /// for all decode steps. For a right-padded context, `lengths`, an integer
  /// tensor (B), has the number of tokens of each sequence. Values are
  /// projected from `value_input` (B, S, d_context) if it is given, as in
  /// `forward`. Keys and values have the dtype and device of the weights and
  /// are not part of an autograd graph. If the module is distributed over
  /// processes, all of them have to call this, since they compare the context.
  ///
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  KVCache make_cache(
      const torch::Tensor& context,
      const torch::Tensor& lengths = {},
      const torch::Tensor& value_input = {});

  /// Computes `forward` of x (B, T, d_in) with the cached keys and values of a
  /// context -> (B, T, d_out); the cache does not change. Masks of `call` are
  /// for the S tokens of the longest context in the cache; `value_input` is
  /// refused, since the cache has the values. Records no
  /// gradients, as under `torch::NoGradGuard`; computes attention in the
  /// cache's dtype.
  ///
  /// Throws c10::Error if shapes, dtypes or devices do not fit, and in training
  /// with dropout.
  ///
  /// Example:
  /// ```
  /// const auto cache = attention->make_cache(encoded);
  /// auto output = attention->decode(token, cache); // (B, 1, d_out)
  /// ```
  torch::Tensor decode(
      const torch::Tensor& x,
      const KVCache& cache,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  CrossAttentionOptions options;

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
  torch::nn::Dropout dropout = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(ForwardOptions())})

 private:
  friend detail::PartitionAccess;

  /// Which heads (distributed/tensor_parallel.h) or tokens
  /// (distributed/sequence_parallel.h) this process computes; all by default.
  std::shared_ptr<const detail::Partition> partition_;
};

/// A `ModuleHolder` for `CrossAttentionImpl`.
TORCH_MODULE(CrossAttention);

} // namespace torch_attention
