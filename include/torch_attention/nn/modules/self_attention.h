#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <iosfwd>
#include <tuple>

namespace torch_attention {

/// Self-attention with bare weight matrices; Python's `SelfAttention_v1`.
///
/// The weights are `(d_in, d_out)` parameters `W_query`, `W_key`, `W_value`,
/// drawn from the uniform distribution on [0, 1).
///
/// Example:
/// ```
/// SelfAttentionV1 attention(/*d_in=*/3, /*d_out=*/2);
/// auto context = attention->forward(torch::rand({6, 3})); // (6, 2)
/// ```
class TORCH_ATTENTION_API SelfAttentionV1Impl
    : public torch::nn::Cloneable<SelfAttentionV1Impl> {
 public:
  SelfAttentionV1Impl(int64_t d_in, int64_t d_out);
  explicit SelfAttentionV1Impl(const SelfAttentionOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (T, d_in) -> (T, d_out), or (B, T, d_in) -> (B, T, d_out).
  /// `call` has masks and padding of the keys.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (T, T), or (B,
  /// T, T).
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  SelfAttentionOptions options;

  torch::Tensor W_query, W_key, W_value;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `SelfAttentionV1Impl`.
TORCH_MODULE(SelfAttentionV1);

/// Self-attention with linear layers; Python's `SelfAttention_v2`.
///
/// Example:
/// ```
/// SelfAttentionV2 attention(/*d_in=*/3, /*d_out=*/2);
/// auto context = attention->forward(torch::rand({6, 3})); // (6, 2)
/// ```
class TORCH_ATTENTION_API SelfAttentionV2Impl
    : public torch::nn::Cloneable<SelfAttentionV2Impl> {
 public:
  SelfAttentionV2Impl(int64_t d_in, int64_t d_out, bool qkv_bias = false);
  explicit SelfAttentionV2Impl(const SelfAttentionOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (T, d_in) -> (T, d_out), or (B, T, d_in) -> (B, T, d_out).
  /// `call` has masks and padding of the keys.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (T, T), or (B,
  /// T, T).
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  SelfAttentionOptions options;

  torch::nn::Linear W_query = nullptr;
  torch::nn::Linear W_key = nullptr;
  torch::nn::Linear W_value = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `SelfAttentionV2Impl`.
TORCH_MODULE(SelfAttentionV2);

} // namespace torch_attention
