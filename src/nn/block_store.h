#pragma once

#include <kernels/attention.h>
#include <nn/block_pool.h>
#include <torch_attention/nn/block_cache.h>

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch_attention::detail {

/// Stands for a block that a sequence has no more, and for none.
constexpr int64_t kNoBlock = -1;

/// A sequence of a `BlockCache`.
struct BlockSequence {
  /// As many as `length` tokens need; kNoBlock for the first `num_freed`.
  std::vector<int64_t> blocks;
  int64_t num_freed = 0;
  int64_t length = 0;
  int64_t peak_length = 0;
  /// How many `hold`s there are. While there is one, nothing is freed.
  int64_t num_holds = 0;
};

/// A sequence before an append to it.
struct BlockBefore {
  BlockSequence* sequence = nullptr;
  int64_t length = 0;
  int64_t peak_length = 0;
  size_t num_blocks = 0;
  /// The shared last block that a copy has replaced; kNoBlock: none. It stays
  /// in use until `commit`.
  int64_t replaced = kNoBlock;
  bool is_held = false;
};

/// The sequences of a `BlockCache`.
class BlockStore {
 public:
  explicit BlockStore(const BlockCacheOptions& options);

  const BlockPool& pool() const {
    return pool_;
  }
  const BlockCacheOptions& options() const {
    return pool_.options();
  }
  int64_t num_sequences() const {
    return static_cast<int64_t>(sequences_.size());
  }

  int64_t admit();
  int64_t fork(int64_t sequence);
  void drop(int64_t sequence);
  void truncate(int64_t sequence, int64_t length);
  void shrink();

  int64_t length(int64_t sequence) const;

  /// Returns the largest length of a sequence in the batches with which this
  /// one was appended to since it was empty.
  int64_t peak_length(int64_t sequence) const;

  /// Returns how many of a sequence's first tokens are freed.
  int64_t num_freed_tokens(int64_t sequence) const;

  /// Checks that the sequences exist and differ, and that there is one.
  void check_batch(torch::IntArrayRef sequences) const;

  /// Appends the first `counts[b]` tokens of keys and values (B, G, T, ...) to
  /// the b-th of different sequences. Returns what `undo` or `commit` has to
  /// get before the next change. Blocks that no token will read are freed
  /// first, also if the call throws.
  std::vector<BlockBefore> append(
      torch::IntArrayRef sequences,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      torch::IntArrayRef counts);

  /// Returns the sequences as they are, for an `undo` or `commit` that may come
  /// after several appends to them.
  std::vector<BlockBefore> hold(torch::IntArrayRef sequences);

  void commit(const std::vector<BlockBefore>& appended) noexcept;
  void undo(const std::vector<BlockBefore>& appended) noexcept;

  /// Returns the number of tokens of the longest of the sequences.
  int64_t most_tokens(torch::IntArrayRef sequences) const;

  /// Returns the blocks of the sequences in the memory of the CPU.
  kernels::KeyBlocks blocks_of(torch::IntArrayRef sequences) const;

  /// Return copies (B, G, S, ...) of the rows of the sequences; of a cache of
  /// int8 in the dtype `int8_as`.
  torch::Tensor gather_keys(
      torch::IntArrayRef sequences,
      torch::Dtype int8_as = torch::kFloat) const;
  torch::Tensor gather_values(
      torch::IntArrayRef sequences,
      torch::Dtype int8_as = torch::kFloat) const;

 private:
  BlockSequence& at(int64_t sequence);
  const BlockSequence& at(int64_t sequence) const;
  int64_t blocks_for(int64_t length) const;
  void free_unneeded(BlockSequence& sequence) noexcept;
  void copy_shared_rows(const std::vector<BlockBefore>& appended);
  void write(
      const std::vector<BlockBefore>& appended,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      torch::IntArrayRef counts);
  torch::Tensor stored_keys(torch::IntArrayRef sequences) const;
  torch::Tensor used_rows(
      const torch::Tensor& rows,
      torch::IntArrayRef sequences) const;
  std::vector<int64_t> padded_blocks(torch::IntArrayRef sequences) const;

  BlockPool pool_;
  /// Nodes stay where they are.
  std::unordered_map<int64_t, BlockSequence> sequences_;
  int64_t next_ = 0;
};

/// Gives functions and modules access to private members of a batch.
struct BlockAccess {
  static BlockStore& store(const BlockBatch& batch) {
    return *batch.store_;
  }
  static std::shared_ptr<BlockStore> shared_store(const BlockBatch& batch) {
    return batch.store_;
  }

  /// `BlockBatch::append`, to be undone or committed.
  static std::vector<BlockBefore> append(
      const BlockBatch& batch,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& new_lengths) {
    return batch.append_to_undo(keys, values, new_lengths);
  }
};

} // namespace torch_attention::detail
