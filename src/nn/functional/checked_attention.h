#pragma once

#include <kernels/attention.h>

#include <torch_attention/nn/options/attention.h>

namespace torch_attention::functional::detail {

/// The function that messages name.
inline constexpr const char* kAttentionName = "scaled_dot_product_attention";

/// Returns whether heads of a query (H, T, D) share keys. The kernels take the
/// first of three dimensions for a batch, and so want one of size 1 before it;
/// but not if lengths or offsets are to go by it.
bool lacks_batch(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query);

/// Checks the arguments of `scaled_dot_product_attention`, and returns them as
/// the kernels take them; with a batch of size 1 if `lacks_batch`.
kernels::Attention checked_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options);

/// Checks mask, bias and key_lengths of `options` for scores of the sizes
/// (B, H, T, S), on the device of tokens x (B, T, ...).
void check_score_tensors(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& x,
    torch::IntArrayRef scores);

/// Checks `options` for scores (..., T, S), and returns them as the kernels
/// take them, without query, key, value and dropout.
kernels::Attention checked_options(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& scores);

} // namespace torch_attention::functional::detail
