#pragma once

#include <nn/rotary.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/indexer.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

/// The steps of an `Indexer` in a call of `LatentAttention`. None records a
/// gradient.
namespace torch_attention::detail {

/// Returns the indexer's keys of tokens x (B, T, d_in): (B, 1, T, head_dim).
torch::Tensor index_keys(
    IndexerImpl& indexer,
    const torch::Tensor& x,
    const RotaryAngles& angles,
    Kernel kernel);

/// The queries of one call.
struct IndexQueries {
  /// (B, num_heads, T, head_dim)
  torch::Tensor queries;
  /// float32 (B, num_heads, T, 1), with all factors
  torch::Tensor weights;
};

/// Returns the indexer's queries of tokens x (B, T, d_in), whose latent vectors
/// are `latent` (B, T, query_rank).
IndexQueries index_queries(
    IndexerImpl& indexer,
    const torch::Tensor& x,
    const torch::Tensor& latent,
    const RotaryAngles& angles,
    Kernel kernel);

/// Throws c10::Error if masks or bias of `options` differ by head: all heads
/// attend to the same keys.
void check_chooses_for_all_heads(
    const functional::ScaledDotProductAttentionFuncOptions& options);

/// Hides in the mask of `options` all keys that the indexer does not choose;
/// `keys` (B, 1, S, head_dim).
void hide_unchosen(
    const IndexerImpl& indexer,
    const IndexQueries& queries,
    const torch::Tensor& keys,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
