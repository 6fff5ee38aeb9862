#pragma once

#include <kernels/attention.h>

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <tuple>

namespace torch_attention::functional::detail {

/// Returns `scaled_dot_product_attention` of `heads`, which may be some of all
/// heads.
torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

/// Returns `scaled_dot_product_attention_with_weights` of `heads`.
std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

} // namespace torch_attention::functional::detail
