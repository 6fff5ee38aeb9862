#pragma once

#include <torch_attention/nn/block_cache.h>

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_attention::detail {

/// The class in messages.
inline constexpr const char* kBlockCache = "BlockCache";

/// The memory of blocks, and how many sequences use each. Memory is allocated
/// in slabs of many blocks, so that a block never moves.
class BlockPool {
 public:
  /// Checks the options.
  explicit BlockPool(const BlockCacheOptions& options);

  /// With the device's index, such as cuda:0 for cuda.
  const BlockCacheOptions& options() const {
    return options_;
  }

  int64_t num_used() const {
    return num_used_;
  }

  int64_t num_free() const;

  size_t nbytes() const;

  /// Returns `count` blocks, each used once. Throws c10::Error, and changes
  /// nothing, if fewer are free or there is no memory.
  std::vector<int64_t> take(int64_t count);

  /// Adds and removes a user of a block.
  void share(int64_t block) noexcept;
  void release(int64_t block) noexcept;

  bool is_shared(int64_t block) const {
    return uses_[static_cast<size_t>(block)] > 1;
  }

  /// Frees slabs without a block in use.
  void shrink();

  /// Return the keys (G, block_size, D) and values (G, block_size, value_dim)
  /// of a block; there are no values with `values_in_keys`.
  torch::Tensor keys(int64_t block) const;
  torch::Tensor values(int64_t block) const;

  /// Return where they begin.
  std::byte* key_data(int64_t block) const;
  std::byte* value_data(int64_t block) const;

  /// Return copies (B, G, n * block_size, D) of the keys and values in `blocks`
  /// (B * n), as they are stored; of `blocks`, -1 stands for rows of zeros.
  torch::Tensor gather_keys(torch::IntArrayRef blocks, int64_t B) const;
  torch::Tensor gather_values(torch::IntArrayRef blocks, int64_t B) const;

  /// Returns keys (1, 1, 1, D) and values (1, 1, 1, value_dim) of zeros, to be
  /// expanded where sizes alone matter; for int8 in float32.
  const torch::Tensor& key_row() const {
    return key_row_;
  }
  const torch::Tensor& value_row() const {
    return value_row_;
  }

 private:
  /// Keys (n, G, block_size, D) and values (n, G, block_size, value_dim) of n
  /// blocks; undefined after it was freed.
  struct Slab {
    torch::Tensor keys;
    torch::Tensor values;
    std::byte* key_data = nullptr;
    std::byte* value_data = nullptr;
    int64_t num_blocks = 0;
    int64_t num_used = 0;
  };

  Slab make_slab(int64_t num_blocks) const;
  void add_slabs(int64_t num_blocks);
  const Slab& slab_of(int64_t block) const;
  torch::Tensor gather(
      torch::IntArrayRef blocks,
      int64_t B,
      torch::Tensor Slab::*part,
      int64_t size) const;

  BlockCacheOptions options_;
  int64_t key_bytes_ = 0; // of a block
  int64_t value_bytes_ = 0;
  int64_t blocks_per_slab_ = 0;
  torch::Tensor key_row_;
  torch::Tensor value_row_;
  /// Block i is block i % blocks_per_slab_ of slab i / blocks_per_slab_.
  std::vector<Slab> slabs_;
  std::vector<int32_t> uses_;
  /// Blocks that are allocated and not in use; the next one is the last.
  std::vector<int64_t> free_;
  int64_t num_allocated_ = 0;
  int64_t num_used_ = 0;
};

} // namespace torch_attention::detail
