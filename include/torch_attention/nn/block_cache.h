#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torch_attention {

namespace detail {
class BlockStore;
struct BlockAccess;
struct BlockBefore;
} // namespace detail

/// Options for `BlockCache`.
///
/// Example:
/// ```
/// BlockCache cache(
///     BlockCacheOptions(/*num_kv_heads=*/8, /*head_dim=*/64)
///         .max_blocks(1024)
///         .dtype(torch::kBFloat16));
/// ```
struct TORCH_ATTENTION_API BlockCacheOptions {
  BlockCacheOptions(int64_t num_kv_heads, int64_t head_dim);

  /// number of key and value heads.
  TORCH_ARG(int64_t, num_kv_heads);

  /// size of each key.
  TORCH_ARG(int64_t, head_dim);

  /// size of each value. Default: head_dim
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;

  /// store no values, because they are the first `value_dim` elements of each
  /// key, as in latent attention; `append` then takes only keys. Default: false
  TORCH_ARG(bool, values_in_keys) = false;

  /// number of tokens of a block, a multiple of 64. Larger blocks are read a
  /// little faster, and waste more memory at the end of each sequence.
  /// Default: 128
  TORCH_ARG(int64_t, block_size) = 128;

  /// the largest number of blocks in use at a time, which bounds the memory.
  /// Default: no limit
  TORCH_ARG(std::optional<int64_t>, max_blocks) = std::nullopt;

  /// keep at least the last `window` tokens of each sequence and free the
  /// blocks of older ones, which sliding-window attention never reads again.
  /// Default: keep all
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;

  /// keep the tokens of each sequence's last chunk, which starts at a multiple
  /// of `chunk`, and free the blocks of older chunks, which chunked attention
  /// never reads again. Not with `window`. Default: keep all
  TORCH_ARG(std::optional<int64_t>, chunk) = std::nullopt;

  /// floating-point dtype of keys and values, or torch::kInt8, which takes
  /// head_dim + 4 bytes for each key and head. Default: torch::kFloat
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat;

  /// device of keys and values. Default: torch::kCPU
  TORCH_ARG(torch::Device, device) = torch::kCPU;
};

class BlockCache;

/// Some sequences of a `BlockCache`, as the batch of one call: row b of an
/// input belongs to the b-th of them. A batch may be used again as the cache
/// changes, until one of its sequences is dropped.
class TORCH_ATTENTION_API BlockBatch {
 public:
  /// Returns the sequences in the order of the batch.
  const std::vector<int64_t>& sequences() const {
    return sequences_;
  }

  /// Returns the number of sequences.
  int64_t size() const {
    return static_cast<int64_t>(sequences_.size());
  }

  /// Returns the number of tokens of each sequence, which is the position of
  /// its next token: int64 (B) on the CPU.
  torch::Tensor lengths() const;

  /// Returns a copy (B, G, S, D) of the keys, where S is the length of the
  /// longest sequence. Rows beyond a shorter sequence are 0, and those of freed
  /// blocks (`window`, `chunk`) are unspecified. Those of a cache of
  /// torch::kInt8 are in float32.
  torch::Tensor keys() const;

  /// Returns a copy (B, G, S, value_dim) of the values, like `keys`; with
  /// `values_in_keys` a view of a copy of the keys.
  torch::Tensor values() const;

  /// Adds T tokens to each sequence: keys and values (B, G, T, D) on the
  /// cache's device, converted to its dtype; undefined values with
  /// `values_in_keys`. With `new_lengths`, an integer tensor (B), adds only the
  /// first `new_lengths[b]` tokens to sequence b.
  ///
  /// Throws c10::Error if shapes or devices do not fit, a sequence was dropped,
  /// or too few blocks are free. The cache is then unchanged.
  ///
  /// Example:
  /// ```
  /// cache.batch({first, second}).append(keys, values);
  /// ```
  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& new_lengths = {}) const;

 private:
  friend class BlockCache;
  friend struct detail::BlockAccess;

  BlockBatch(
      std::shared_ptr<detail::BlockStore> store,
      std::vector<int64_t> sequences);

  /// Returns what takes back the tokens again.
  std::vector<detail::BlockBefore> append_to_undo(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& new_lengths) const;

  std::shared_ptr<detail::BlockStore> store_;
  std::vector<int64_t> sequences_;
};

/// The keys and values of one attention layer for serving: sequences that come
/// and go, grow without being moved, and share what they have in common. Tokens
/// are stored in blocks of `block_size` that lie anywhere in memory, and each
/// sequence has a table of its blocks (Kwon et al. 2023, "Efficient Memory
/// Management for Large Language Model Serving with PagedAttention").
///
/// A fork shares all blocks of its source, and so stores nothing: a common
/// prompt, or the past of beams, is in memory once. The first new token of
/// either copies the last block, if it is not full (copy on write).
///
/// On the CPU attention reads the blocks where they are, and its results have
/// the bits that a `KVCache` which keeps all tokens gives. Other devices and
/// `Kernel::kReference` copy the rows of the batch for each call.
///
/// With `window` or `chunk`, an append first frees the blocks of the tokens
/// that no later one reads, but for `block_size` tokens that `truncate` may
/// remove. So a sequence of any length has at most the blocks of `window - 1 +
/// block_size` tokens and those of the new ones, and two more.
///
/// Memory is allocated for many blocks at once, and kept for later sequences
/// until `shrink`.
///
/// A call that throws leaves the tokens as they were, but may keep memory that
/// it has allocated, and may have freed the blocks that no later token reads.
/// Autograd records nothing. Not thread-safe while it changes. Caches can be
/// moved, but not copied.
///
/// Example:
/// ```
/// BlockCache cache(attention->block_cache_options().max_blocks(1024));
/// const auto a = cache.admit();
/// auto context = attention->decode(prompt, cache.batch({a})); // (1, T, d_out)
/// const auto b = cache.fork(a); // shares the prompt
/// context = attention->decode(tokens, cache.batch({a, b})); // (2, 1, d_out)
/// cache.drop(a);
/// ```
class TORCH_ATTENTION_API BlockCache {
 public:
  /// Allocates no blocks.
  /// Throws c10::Error for sizes that are not positive or fit into no memory,
  /// for a `block_size` that is no multiple of 64, for a window beside a chunk,
  /// and for a dtype that is neither floating-point nor torch::kInt8, for which
  /// see `KVCache`.
  explicit BlockCache(const BlockCacheOptions& options);

  /// The moved-from cache must not be used.
  BlockCache(BlockCache&&) noexcept = default;
  BlockCache& operator=(BlockCache&&) noexcept = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() = default;

  /// Adds an empty sequence, and returns its number, which no other sequence of
  /// this cache gets.
  int64_t admit();

  /// Adds a sequence with the tokens of `sequence`, whose blocks it shares, and
  /// returns its number.
  /// Throws c10::Error if there is no such sequence.
  int64_t fork(int64_t sequence);

  /// Removes a sequence. Blocks that no other one shares become free.
  /// Throws c10::Error if there is no such sequence.
  void drop(int64_t sequence);

  /// Truncates a sequence that is longer than `length` tokens.
  /// Throws c10::Error if there is no such sequence, `length` is negative, or,
  /// with `window` or `chunk`, if a sequence of `length` > 0 tokens needs some
  /// that were freed, which is never so if at most `block_size` are removed.
  void truncate(int64_t sequence, int64_t length);

  /// Returns the smallest length > 0 to which `truncate` can bring a sequence:
  /// 1, or more if blocks were freed (`window`, `chunk`).
  /// Throws c10::Error if there is no such sequence.
  int64_t least_length(int64_t sequence) const;

  /// Returns a batch of different sequences, of which there is at least one.
  /// Throws c10::Error if there is no such sequence, or one occurs twice.
  BlockBatch batch(std::vector<int64_t> sequences) const;

  /// Returns the number of tokens of a sequence.
  /// Throws c10::Error if there is no such sequence.
  int64_t length(int64_t sequence) const;

  /// Returns the number of sequences.
  int64_t num_sequences() const;

  /// Returns the number of blocks in use; a shared block counts once.
  int64_t num_blocks() const;

  /// Returns how many more blocks `max_blocks` allows; without it the largest
  /// int64_t.
  int64_t num_free_blocks() const;

  /// Returns the number of bytes allocated for keys and values.
  size_t nbytes() const;

  /// Gives memory of which no block is in use back to the system.
  void shrink();

  /// Returns the options with which the cache was constructed.
  const BlockCacheOptions& options() const;

 private:
  std::shared_ptr<detail::BlockStore> store_;
};

} // namespace torch_attention
