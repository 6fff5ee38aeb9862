#pragma once

#include <torch_attention/nn/block_cache.h>

#include <cstdint>

/// A small cache of blocks, and rows for it.
namespace torch_attention::testing::small_blocks {

inline constexpr int64_t kBlock = 64;
inline constexpr int64_t kHeads = 2;
inline constexpr int64_t kHeadDim = 3;
inline constexpr int64_t kValueDim = 2;

inline BlockCacheOptions small() {
  return BlockCacheOptions(kHeads, kHeadDim)
      .value_dim(kValueDim)
      .block_size(kBlock)
      .dtype(torch::kDouble);
}

/// Rows (B, G, T, size) that differ from all others.
inline torch::Tensor draw(size_t B, int64_t T, int64_t size) {
  return torch::randn(
      {static_cast<int64_t>(B), kHeads, T, size}, torch::kDouble);
}

} // namespace torch_attention::testing::small_blocks
