#pragma once

#include <torch_attention/distributed/group.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::distributed {

/// Returns the attention of query (B, H, T, D), the same in all processes, to
/// keys (B, G, n, D) and values (B, G, n, E) that are distributed over the
/// processes, with a different n in each: (B, H, T, E), the same in all
/// processes. In `options`, `key_lengths`, `mask` and `bias` cover this
/// process's keys, sinks count once for all keys, and rules that depend on
/// positions are ignored. Runs on the CPU; autograd records nothing.
torch::Tensor attention_of_key_parts(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options);

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
