#pragma once

#include <kernels/attention.h>

#include <torch_attention/nn/options/attention.h>

#include <tuple>

namespace torch_attention::functional::detail {

/// Returns whether heads of a query (H, T, D) share keys. The kernels take the
/// first of three dimensions for a batch, and so want one of size 1 before it;
/// but not if lengths or offsets are to go by it.
bool lacks_batch(
    const ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query);

/// Checks the arguments of `scaled_dot_product_attention`, and returns them as
/// the kernels take them; with a batch of size 1 if `lacks_batch`.
kernels::Attention attention_of_call(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options);

/// `scaled_dot_product_attention` of `heads` of more that other processes have.
torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

/// `scaled_dot_product_attention_with_weights` of such heads.
std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

} // namespace torch_attention::functional::detail
