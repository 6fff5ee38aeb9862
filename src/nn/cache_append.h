#pragma once

#include <torch_attention/nn/kv_cache.h>

#include <torch/types.h>

#include <utility>

namespace torch_attention::detail {

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
  /// Takes the arguments of `KVCache::append`, and throws what it throws.
  CacheAppend(
      KVCache& cache,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts)
      : cache_(cache), before_(cache.state_) {
    cache.append(keys, values, counts);
  }

  CacheAppend(const CacheAppend&) = delete;
  CacheAppend& operator=(const CacheAppend&) = delete;

  ~CacheAppend() {
    if (!committed_) {
      // Must not allocate: the reason may be that memory ran out.
      cache_.state_ = std::move(before_);
    }
  }

  void commit() noexcept {
    committed_ = true;
  }

 private:
  KVCache& cache_;
  /// Keeps the old rows alive even if the cache moved to new ones.
  KVCache::State before_;
  bool committed_ = false;
};

} // namespace torch_attention::detail
