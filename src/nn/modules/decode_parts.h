#pragma once

#include <nn/modules/decode.h>
#include <nn/modules/token_split.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>

#include <torch/types.h>

#include <string>

namespace torch_attention::detail {

/// Returns what has to be the same in all processes of a call of `decode`.
std::string text_of_decode(
    const KVCache& cache,
    const DecodeOptions& call,
    const NewTokens& tokens);

/// Returns the attention of queries (B, H, T, D), the first of which stand at
/// the positions `first`, int64 (B) on the CPU, to a cache of whose tokens
/// other processes have theirs: (B, H, T, E). A bias of `options` is for T
/// queries and all tokens. Computed in the cache's dtype.
torch::Tensor attend_to_parts(
    const TokenSplit& split,
    const torch::Tensor& queries,
    const KVCache& cache,
    const torch::Tensor& first,
    const functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
