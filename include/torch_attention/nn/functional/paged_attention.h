#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/options/attention.h>

namespace torch_attention::functional {

/// `scaled_dot_product_attention` of queries (B, H, T, D) in the cache's dtype
/// to the tokens of B sequences of a `BlockCache` -> (B, H, T, value_dim). By
/// default the queries of each sequence are its last T tokens, and all its
/// tokens are keys; `query_offsets` and `key_lengths` change that. If query
/// heads share key heads, `enable_gqa` is needed. Gradients are those of the
/// query alone, and then the rows are copied.
///
/// Throws c10::Error if shapes, dtypes or devices do not fit, or a sequence was
/// dropped.
///
/// Example:
/// ```
/// const auto batch = cache.batch({a, b});
/// batch.append(keys, values); // (2, G, 1, D)
/// auto context = paged_attention( // (2, H, 1, D)
///     query, batch,
///     ScaledDotProductAttentionFuncOptions().causal(true).enable_gqa(true));
/// ```
TORCH_ATTENTION_API torch::Tensor paged_attention(
    const torch::Tensor& query,
    const BlockBatch& sequences,
    ScaledDotProductAttentionFuncOptions options = {});

} // namespace torch_attention::functional
