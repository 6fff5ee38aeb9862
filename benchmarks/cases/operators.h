#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace torch_attention::benchmarks {

/// LibTorch's `scaled_dot_product_attention` without dropout. Key and value may
/// have fewer heads, each for a group of the query's.
torch::Tensor sdpa(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& mask,
    bool causal);

/// Splits heads: (B, T, H D) -> (B, H, T, D).
torch::Tensor heads_of(const torch::Tensor& x, int64_t heads);

/// Joins heads: (B, H, T, D) -> (B, T, H D).
torch::Tensor joined(const torch::Tensor& heads);

/// Returns a linear layer's result, without the call of a module.
torch::Tensor project(const torch::nn::Linear& layer, const torch::Tensor& x);

/// Copies rows (B, H, T, D) to the start of a tensor (B, H, T + room, D), as in
/// a cache of one's own.
torch::Tensor with_room(const torch::Tensor& rows, int64_t room);

} // namespace torch_attention::benchmarks
