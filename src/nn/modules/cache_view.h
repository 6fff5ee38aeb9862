#pragma once

#include <nn/block_store.h>
#include <nn/cache_state.h>
#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace torch_attention::detail {

/// The sequences of a call of `decode`: a `KVCache`, or a batch of a
/// `BlockCache`. As in a `KVCache`, row r of a sequence is its token
/// `starts() + r`.
class CacheView {
 public:
  CacheView() = default;
  CacheView(const CacheView&) = delete;
  CacheView& operator=(const CacheView&) = delete;
  virtual ~CacheView() = default;

  virtual const KVCacheOptions& options() const = 0;

  /// Return one number for each sequence, int64 (B) on the CPU.
  virtual torch::Tensor lengths() const = 0;
  virtual torch::Tensor starts() const = 0;

  /// Returns the largest length to which sequence b was rotated.
  virtual int64_t peak_length(int64_t b) const = 0;

  /// Returns the largest number of rows of a sequence.
  virtual int64_t num_rows() const = 0;

  /// Returns the keys (B, G, num_rows, D).
  virtual torch::Tensor keys() const = 0;

  /// Returns the attention of queries (B, H, T, D), computed in the cache's
  /// dtype, or for int8 in theirs, in which it is returned.
  virtual torch::Tensor attend(
      const torch::Tensor& query,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const = 0;

  /// Returns the `KVCache`; null for blocks.
  virtual const KVCache* slab() const {
    return nullptr;
  }

  /// Appends the first `counts[b]` tokens, or all if it is undefined, to each
  /// sequence. `undo` takes them back, and cannot fail; it or `commit` has to
  /// follow.
  virtual void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts) = 0;
  virtual void undo() noexcept = 0;
  virtual void commit() noexcept = 0;
};

/// A `KVCache`.
class SlabView final : public CacheView {
 public:
  explicit SlabView(KVCache& cache) : cache_(cache) {}

  const KVCacheOptions& options() const override {
    return cache_.options();
  }
  torch::Tensor lengths() const override {
    return cache_.lengths();
  }
  torch::Tensor starts() const override {
    return cache_.starts();
  }
  int64_t peak_length(int64_t /*b*/) const override {
    return cache_.peak_length();
  }
  int64_t num_rows() const override {
    return CacheState::num_rows(cache_);
  }
  torch::Tensor keys() const override {
    return cache_.keys();
  }
  torch::Tensor attend(
      const torch::Tensor& query,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override;
  const KVCache* slab() const override {
    return &cache_;
  }
  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts) override;
  void undo() noexcept override;
  void commit() noexcept override;

 private:
  KVCache& cache_;
  std::optional<CacheState::State> before_;
};

/// A batch of a `BlockCache`. All that reads sequences throws c10::Error if one
/// was dropped.
class BlocksView final : public CacheView {
 public:
  explicit BlocksView(const BlockBatch& batch);

  const KVCacheOptions& options() const override {
    return options_;
  }
  torch::Tensor lengths() const override {
    return batch_.lengths();
  }
  torch::Tensor starts() const override;
  int64_t peak_length(int64_t b) const override;
  int64_t num_rows() const override;
  torch::Tensor keys() const override {
    return batch_.keys();
  }
  torch::Tensor attend(
      const torch::Tensor& query,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override;
  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts) override;
  void undo() noexcept override;
  void commit() noexcept override;

 private:
  const BlockBatch& batch_;
  BlockStore& store_;
  KVCacheOptions options_;
  std::vector<BlockBefore> before_;
};

/// Appends tokens to a cache, and removes them again at the end of its scope
/// unless `commit` was called.
///
/// Example:
/// ```
/// CacheAppend appended(cache, keys, values, counts);
/// auto context = attend(query, cache); // may throw
/// appended.commit();
/// ```
class CacheAppend {
 public:
  /// Takes the arguments of `CacheView::append`, and throws what it throws.
  CacheAppend(
      CacheView& cache,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts)
      : cache_(cache) {
    cache.append(keys, values, counts);
  }

  CacheAppend(const CacheAppend&) = delete;
  CacheAppend& operator=(const CacheAppend&) = delete;

  ~CacheAppend() {
    if (!committed_) {
      cache_.undo();
    }
  }

  void commit() noexcept {
    cache_.commit();
    committed_ = true;
  }

 private:
  CacheView& cache_;
  bool committed_ = false;
};

} // namespace torch_attention::detail
