#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <iosfwd>
#include <tuple>

namespace torch_attention {

/// One head of causal self-attention with dropout; Python's `CausalAttention`.
///
/// The buffer `mask` (context_length, context_length) is Python's float upper
/// triangle. It exists only for the state dict: `options.causal()` decides
/// which keys are hidden, so editing the buffer has no effect.
///
/// Example:
/// ```
/// CausalAttention attention(
///     /*d_in=*/3, /*d_out=*/2, /*context_length=*/6, /*dropout=*/0.0);
/// auto context = attention->forward(torch::rand({2, 6, 3})); // (2, 6, 2)
/// ```
class TORCH_ATTENTION_API CausalAttentionImpl
    : public torch::nn::Cloneable<CausalAttentionImpl> {
 public:
  CausalAttentionImpl(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      double dropout_p,
      bool qkv_bias = false);
  explicit CausalAttentionImpl(const CausalAttentionOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) with T <= context_length -> (B, T, d_out).
  /// `call` has masks and padding of the keys.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (B, T, T), after
  /// dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  CausalAttentionOptions options;

  torch::nn::Linear W_query = nullptr;
  torch::nn::Linear W_key = nullptr;
  torch::nn::Linear W_value = nullptr;
  torch::nn::Dropout dropout = nullptr;
  /// Undefined for `register_mask(false)`.
  torch::Tensor mask;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `CausalAttentionImpl`.
TORCH_MODULE(CausalAttention);

} // namespace torch_attention
