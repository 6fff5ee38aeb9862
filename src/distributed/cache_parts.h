#pragma once

#include <torch_attention/distributed/group.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::distributed {

/// Returns the attention of queries (B, H, T, D), whose first positions are
/// `first`, int64 (B) on the CPU, to a cache whose tokens are distributed over
/// the processes: (B, H, T, E). A bias in `options` covers T queries and all
/// tokens. Computes in the cache's dtype.
torch::Tensor attend_to_cache_parts(
    const Group& group,
    const torch::Tensor& queries,
    const KVCache& cache,
    const torch::Tensor& first,
    const functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::distributed
