#pragma once

#include <torch/types.h>

#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <vector>

/// Sequences of different lengths in one batch without padding.
namespace encoder {

/// The lengths of sequences that lie one after the other, without padding.
///
/// Sizes: `B` sequences, `N` tokens in all.
class PackedLengths {
 public:
  /// Sequences of one length that are neighbours, which attention takes as one
  /// batch: sort sequences by length.
  struct Run {
    int64_t begin;
    int64_t count;
    int64_t length;
  };

  explicit PackedLengths(const std::vector<int64_t>& lengths);

  /// Where the sequences begin, and their end: int64 (B + 1), the cumulative
  /// lengths that others call `cu_seqlens`.
  torch::Tensor offsets;
  /// The position of each token in its sequence: int64 (N).
  torch::Tensor positions;
  std::vector<Run> runs;
};

/// Attention of packed sequences, x (N, C) -> (N, C): projections of all tokens
/// at once, and scores within each sequence only. `biases` are added to the
/// scores, one for each run, unless there are none.
torch::Tensor attend_packed(
    torch_attention::MultiHeadAttention& attention,
    const torch::Tensor& x,
    const PackedLengths& lengths,
    const std::vector<torch::Tensor>& biases);

} // namespace encoder
