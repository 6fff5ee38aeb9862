#pragma once

#include <nn/modules/decode.h>
#include <nn/modules/partition.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

/// Checks of calls of `MultiHeadAttention`, and their options of functional
/// attention.
namespace torch_attention::detail {

constexpr const char* kMultiHead = "MultiHeadAttention";

/// Checks shape and dtype of tokens x (B, T, d_in), and that the weights have
/// the sizes of the module's heads.
void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x);

/// Returns the positions of tokens x (B, T, ...) in their sequences, ignoring
/// `call.positions()`: int64 (T) or (B, T), or undefined for 0 to T - 1.
torch::Tensor sequence_positions(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// The arguments of one call of `forward` after their checks.
struct CheckedCall {
  /// int64 (T) or (B, T); undefined if they are 0 to T - 1 or not used.
  torch::Tensor positions;
  /// Without the kernel.
  functional::ScaledDotProductAttentionFuncOptions options;
};

CheckedCall check_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// The arguments of one call of `decode` after their checks.
struct CheckedDecode {
  NewTokens tokens;
  /// Without the visible blocks.
  functional::ScaledDotProductAttentionFuncOptions options;
};

CheckedDecode check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call);

/// Returns the options of functional attention after `tokens` were appended to
/// `cache`; `checked` is `CheckedDecode::options`.
functional::ScaledDotProductAttentionFuncOptions decode_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens,
    functional::ScaledDotProductAttentionFuncOptions checked);

} // namespace torch_attention::detail
