#pragma once

#include <kernels/attention.h>

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <vector>

/// Attention of some queries after the others, which bounds what is formed.
namespace torch_attention::kernels {

/// The queries of a block: enough to keep a device busy.
constexpr int64_t kQueryBlock = 256;

/// Returns whether `a`, of four dimensions, can be computed in blocks: queries
/// are causal or at no position, and there are enough of them.
inline bool has_query_blocks(const Attention& a) {
  return a.query.dim() == 4 && a.query.size(2) > kQueryBlock &&
      a.query.size(2) <= a.key.size(2) && !a.query_starts.defined() &&
      !a.query_offsets.defined() &&
      (a.rule.causal || (!a.rule.hides_keys() && !a.alibi_slopes.defined()));
}

/// Returns queries [begin, end) of `a`, with the keys up to those that the last
/// of them sees.
inline Attention query_block(const Attention& a, int64_t begin, int64_t end) {
  auto block = a;
  const auto S =
      a.rule.causal ? a.key.size(2) - a.query.size(2) + end : a.key.size(2);
  block.query = a.query.narrow(2, begin, end - begin);
  block.key = a.key.narrow(2, 0, S);
  block.value = a.value.narrow(2, 0, S);
  for (auto* scores : {&block.mask, &block.bias}) {
    if (scores->defined() && scores->dim() > 0 && scores->size(-1) > 1) {
      *scores = scores->narrow(-1, 0, S);
    }
    if (scores->defined() && scores->dim() > 1 && scores->size(-2) > 1) {
      *scores = scores->narrow(-2, begin, end - begin);
    }
  }
  return block;
}

/// Returns the output (B, H, T, Dv) of the blocks that `output_of` computes.
template <typename OutputOf>
torch::Tensor by_query_blocks(const Attention& a, const OutputOf& output_of) {
  const auto T = a.query.size(2);
  std::vector<torch::Tensor> outputs;
  for (int64_t begin = 0; begin < T; begin += kQueryBlock) {
    outputs.push_back(
        output_of(query_block(a, begin, std::min(begin + kQueryBlock, T))));
  }
  return at::cat(outputs, 2);
}

} // namespace torch_attention::kernels
