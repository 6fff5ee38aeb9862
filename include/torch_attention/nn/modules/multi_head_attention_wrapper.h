#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <iosfwd>
#include <tuple>

namespace torch_attention {

/// Heads of `CausalAttention` side by side, their outputs concatenated;
/// Python's `MultiHeadAttentionWrapper`.
///
/// `d_out` is the size of one head: the output has `num_heads * d_out`.
///
/// Example:
/// ```
/// MultiHeadAttentionWrapper attention(
///     /*d_in=*/3, /*d_out=*/2, /*context_length=*/6, /*dropout=*/0.0,
///     /*num_heads=*/2);
/// auto context = attention->forward(torch::rand({2, 6, 3})); // (2, 6, 4)
/// ```
class TORCH_ATTENTION_API MultiHeadAttentionWrapperImpl
    : public torch::nn::Cloneable<MultiHeadAttentionWrapperImpl> {
 public:
  MultiHeadAttentionWrapperImpl(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      double dropout_p,
      int64_t num_heads,
      bool qkv_bias = false);
  explicit MultiHeadAttentionWrapperImpl(
      const MultiHeadAttentionWrapperOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) with T <= context_length -> (B, T, num_heads * d_out).
  /// `call` has masks and padding of the keys.
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
  MultiHeadAttentionWrapperOptions options;

  /// `num_heads` modules of type `CausalAttention`.
  torch::nn::ModuleList heads = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `MultiHeadAttentionWrapperImpl`.
TORCH_MODULE(MultiHeadAttentionWrapper);

} // namespace torch_attention
