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
  /// The rows and lengths of a cache, alive even if it moves to new memory.
  using State = KVCache::State;

  static State state_of(const KVCache& cache) {
    return cache.state_;
  }

  /// Takes back what was appended since `state_of`. Allocates nothing, since
  /// memory may be what is missing.
  static void restore(KVCache& cache, State&& before) noexcept {
    cache.state_ = std::move(before);
  }

  /// Takes the arguments of `KVCache::append`, and throws what it throws.
  CacheAppend(
      KVCache& cache,
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& counts)
      : cache_(cache), before_(state_of(cache)) {
    cache.append(keys, values, counts);
  }

  CacheAppend(const CacheAppend&) = delete;
  CacheAppend& operator=(const CacheAppend&) = delete;

  ~CacheAppend() {
    if (!committed_) {
      restore(cache_, std::move(before_));
    }
  }

  void commit() noexcept {
    committed_ = true;
  }

 private:
  KVCache& cache_;
  State before_;
  bool committed_ = false;
};

} // namespace torch_attention::detail
