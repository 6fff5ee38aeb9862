#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>
#include <torch_attention/nn/block_cache.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace torch_attention::models {

/// Options for `LanguageModel::make_sequence_caches`.
///
/// Example:
/// ```
/// auto caches = model->make_sequence_caches(
///     SequenceCachesOptions().max_blocks(1024).dtype(torch::kInt8));
/// ```
struct TORCH_ATTENTION_MODELS_API SequenceCachesOptions {
  /// number of tokens of a block, a multiple of 64. Default: 128
  TORCH_ARG(int64_t, block_size) = 128;

  /// the largest number of blocks of each layer in use at a time, which bounds
  /// the memory. Default: no limit
  TORCH_ARG(std::optional<int64_t>, max_blocks) = std::nullopt;

  /// floating-point dtype of keys and values, or torch::kInt8, which takes
  /// head_dim + 4 bytes for each key and head. Default: that of the model
  TORCH_ARG(std::optional<torch::Dtype>, dtype) = std::nullopt;
};

/// The keys and values of all layers of a model for serving: texts that come
/// and go, grow without being moved, and share what they begin with. A
/// `BlockCache` for each layer; a sequence has one number in all of them. A
/// layer has as many blocks in use as the others, or fewer if its attention has
/// a window or chunks.
///
/// A call that throws leaves all layers as they were, but may keep memory that
/// it has allocated. Not thread-safe while it changes. Can be moved, but not
/// copied.
///
/// Example:
/// ```
/// auto caches = model->make_sequence_caches();
/// const auto a = caches.admit();
/// auto logits = model->decode(prompt, caches, {a}); // (1, V)
/// const auto b = caches.fork(a); // shares the prompt
/// logits = model->decode(tokens, caches, {a, b}); // (2, V)
/// caches.drop(a);
/// ```
class TORCH_ATTENTION_MODELS_API SequenceCaches {
 public:
  /// Makes a cache for each layer. Allocates no blocks.
  /// Throws c10::Error if there are no layers, if their block sizes differ, and
  /// as `BlockCache` does.
  explicit SequenceCaches(const std::vector<BlockCacheOptions>& layers);

  /// The moved-from caches must not be used.
  SequenceCaches(SequenceCaches&&) noexcept = default;
  SequenceCaches& operator=(SequenceCaches&&) noexcept = default;
  SequenceCaches(const SequenceCaches&) = delete;
  SequenceCaches& operator=(const SequenceCaches&) = delete;
  ~SequenceCaches() = default;

  /// Adds an empty sequence, and returns its number, which no other sequence of
  /// these caches gets.
  int64_t admit();

  /// Adds a sequence with the tokens of `sequence`, whose blocks it shares, and
  /// returns its number.
  /// Throws c10::Error if there is no such sequence.
  int64_t fork(int64_t sequence);

  /// Removes a sequence. Blocks that no other one shares become free.
  /// Throws c10::Error if there is no such sequence.
  void drop(int64_t sequence);

  /// Truncates a sequence that is longer than `length` tokens.
  /// Throws c10::Error if there is no such sequence, `length` is negative, or a
  /// layer with a window or chunks needs tokens that were freed, which is never
  /// so if at most `block_size` are removed.
  void truncate(int64_t sequence, int64_t length);

  /// Returns different sequences, of which there is at least one, as a batch of
  /// each layer.
  /// Throws c10::Error if there is no such sequence, or one occurs twice.
  std::vector<BlockBatch> batches(const std::vector<int64_t>& sequences) const;

  /// Returns the number of tokens of a sequence.
  /// Throws c10::Error if there is no such sequence.
  int64_t length(int64_t sequence) const;

  /// Returns the number of sequences.
  int64_t num_sequences() const;

  /// Returns the number of layers.
  int64_t num_layers() const;

  /// Returns the number of tokens of a block.
  int64_t block_size() const;

  /// Returns the number of blocks in use in the layer that uses the most; a
  /// shared block counts once.
  int64_t num_blocks() const;

  /// Returns how many more blocks `max_blocks` allows in each layer, by the
  /// smallest of them; without any the largest int64_t.
  int64_t num_free_blocks() const;

  /// Returns the number of bytes allocated for keys and values of all layers.
  size_t nbytes() const;

  /// Gives memory of which no block is in use back to the system.
  void shrink();

 private:
  template <typename Add>
  int64_t add(const Add& add_to_layer);

  const std::vector<int64_t>& numbers_of(int64_t sequence) const;

  std::vector<BlockCache> layers_;
  /// The number of each sequence in each layer.
  std::unordered_map<int64_t, std::vector<int64_t>> sequences_;
  int64_t next_ = 0;
};

} // namespace torch_attention::models
