#pragma once

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/block_scope.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// Blocks of tokens that see each other in both directions.
namespace torch_attention::detail {

/// The blocks of the queries.
struct VisibleBlocks {
  /// int64 (B, T), or (T) without a batch: the block of each query; negative
  /// without a block.
  torch::Tensor ids;
  /// int64 (B): the index of the first query among the keys. Undefined: 0.
  torch::Tensor first = {};
};

/// Checks `ids` for scores of the sizes `scores`.
void check_visible_blocks(
    const char* name,
    const torch::Tensor& ids,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    const functional::ScaledDotProductAttentionFuncOptions& options);

/// Replaces the causal rule of `options` by a mask that combines it with the
/// blocks and the mask of `options`. `scores` are the sizes of the scores: (B,
/// H, T, S), (B, T, S), or (T, S) without a batch.
void set_visible_blocks(
    const char* name,
    const VisibleBlocks& blocks,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
