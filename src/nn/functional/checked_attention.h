#pragma once

#include <kernels/attention.h>

#include <torch_attention/nn/options/attention.h>

namespace torch_attention::functional::detail {

/// The name of the function in messages.
inline constexpr const char* kAttentionName = "scaled_dot_product_attention";

/// Returns whether the first dimension of a query (H, T, D) is heads that share
/// keys. The kernels take the first of three dimensions for a batch, so such a
/// query needs a batch dimension of size 1. With key_lengths or query_offsets
/// the first dimension is the batch.
bool lacks_batch(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query);

/// Checks the arguments of `scaled_dot_product_attention`, and returns the
/// arguments of the kernels, with a batch of size 1 if `lacks_batch`.
kernels::Attention checked_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options);

/// Checks mask, bias and key_lengths of `options` for scores of the sizes
/// `scores`, (B, H, T, S), on the device of x (B, T, ...).
void check_score_tensors(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& x,
    torch::IntArrayRef scores);

/// Checks `options` for scores (..., T, S), and returns the arguments of the
/// kernels without query, key, value and dropout.
kernels::Attention checked_options(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& scores);

} // namespace torch_attention::functional::detail
