#pragma once

#include <kernels/attention.h>
#include <nn/block_store.h>

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <tuple>

namespace torch_attention {
class KVCache;
}

namespace torch_attention::functional::detail {

/// Computes `scaled_dot_product_attention` of `heads`, which may be a part of
/// all heads: then dropout draws the random numbers of these heads.
torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

/// Computes `scaled_dot_product_attention` of a query (B, H, T, D) and the rows
/// of a cache: in the cache's dtype, or for int8 in the query's, in which it is
/// returned.
torch::Tensor attend(
    const torch::Tensor& query,
    const KVCache& cache,
    const ScaledDotProductAttentionFuncOptions& options);

/// Computes `scaled_dot_product_attention` of a query (B, H, T, D) in the dtype
/// of a cache of blocks, or any for int8, and the rows of B of its sequences.
torch::Tensor attend(
    const torch::Tensor& query,
    const torch_attention::detail::BlockStore& store,
    torch::IntArrayRef sequences,
    const ScaledDotProductAttentionFuncOptions& options);

/// Computes `scaled_dot_product_attention_with_weights` of `heads`.
std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options,
    const kernels::SharedHeads& heads);

} // namespace torch_attention::functional::detail
