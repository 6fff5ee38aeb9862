#pragma once

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/block_scope.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// Blocks of tokens that see each other to both sides.
namespace torch_attention::detail {

/// The tokens whose blocks are given.
struct VisibleBlocks {
  /// int64 (B, T), or (T) without a batch: the block of each query, or less
  /// than 0.
  torch::Tensor ids;
  /// int64 (B): the place of the first query among the keys. Undefined: 0.
  torch::Tensor first = {};
};

/// Checks the blocks `ids` of scores of the sizes `scores`.
void check_visible_blocks(
    const char* name,
    const torch::Tensor& ids,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    const functional::ScaledDotProductAttentionFuncOptions& options);

/// Makes a mask of the causal rule and the blocks, and puts it into `options`
/// beside the mask there, in place of the rule. `scores` are the sizes of the
/// scores: (B, H, T, S), (B, T, S), or (T, S) without a batch.
void set_visible_blocks(
    const char* name,
    const VisibleBlocks& blocks,
    BlockScope scope,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
