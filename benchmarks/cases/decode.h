#pragma once

#include <cases/candidates.h>
#include <harness/work.h>

#include <torch/types.h>

#include <string>

namespace torch_attention::benchmarks {

/// A decode step of attention alone: the key and value of one new token are
/// added to S - 1 earlier ones, and its query attends to all.
struct DecodeData {
  /// (B, G, S - 1, D)
  torch::Tensor past_key, past_value;
  /// (B, H, 1, D)
  torch::Tensor query;
  /// (B, G, 1, D)
  torch::Tensor key, value;
};

DecodeData draw_decode(const Work& work);

/// Returns our `KVCache` in `dtype` with functional attention.
Candidate our_decode(
    const std::string& name,
    const DecodeData& data,
    torch::Dtype dtype);

/// Returns our `BlockCache` in `dtype` with functional attention.
Candidate block_decode(
    const std::string& name,
    const DecodeData& data,
    torch::Dtype dtype = torch::kFloat);

/// Returns LibTorch's attention to tensors with room, as a user writes it.
Candidate preallocated_decode(const std::string& name, const DecodeData& data);

/// Returns LibTorch's attention to the old keys and values and the new ones,
/// joined by `torch::cat`.
Candidate concatenated_decode(const std::string& name, const DecodeData& data);

} // namespace torch_attention::benchmarks
