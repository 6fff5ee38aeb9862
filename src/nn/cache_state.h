#pragma once

#include <torch_attention/nn/kv_cache.h>

#include <utility>

namespace torch_attention::detail {

/// Takes back what was appended to a `KVCache`.
class CacheState {
 public:
  /// The rows and lengths of a cache, alive even if it moves to new memory.
  using State = KVCache::State;

  static State of(const KVCache& cache) {
    return cache.state_;
  }

  /// Returns the largest number of rows of a sequence.
  static int64_t num_rows(const KVCache& cache) {
    return cache.num_rows();
  }

  /// Return the rows in use as they are stored, keys and values.
  static torch::Tensor stored_keys(const KVCache& cache) {
    return cache.in_use(cache.state_.rows.keys);
  }
  static torch::Tensor stored_values(const KVCache& cache) {
    return cache.in_use(cache.state_.rows.values);
  }

  /// Takes back what was appended since `of`. Allocates nothing, since memory
  /// may be what is missing.
  static void restore(KVCache& cache, State&& before) noexcept {
    cache.state_ = std::move(before);
  }
};

} // namespace torch_attention::detail
