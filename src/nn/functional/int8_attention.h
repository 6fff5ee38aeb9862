#pragma once

#include <kernels/attention.h>

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace torch_attention::functional::detail {

/// Keys (B, G, S, D) and values (B, G, S, Dv) of a cache of int8.
struct Int8Cache {
  torch::Device device;
  int64_t B;
  int64_t G;
  int64_t S;
  int64_t D;
  int64_t Dv;
  kernels::Int8Keys rows;
  /// Null: not in blocks.
  const kernels::KeyBlocks* blocks = nullptr;
  /// Returns keys and values in a floating-point dtype.
  std::function<std::pair<torch::Tensor, torch::Tensor>(torch::Dtype)>
      converted;
};

/// Computes `scaled_dot_product_attention`, in the query's dtype: few queries
/// by the kernel for rows of int8, others with keys and values that are
/// converted once for all.
torch::Tensor attend_to_int8(
    const torch::Tensor& query,
    const Int8Cache& cache,
    const ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::functional::detail
