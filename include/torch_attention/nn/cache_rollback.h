#pragma once

#include <torch_attention/export.h>
#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/kv_cache.h>

#include <memory>
#include <vector>

namespace torch_attention {

/// Makes a step of several caches all or nothing: at the end of its scope the
/// caches are as they were at its beginning, unless `commit` was called. In
/// between tokens may be appended (`append`, `decode`), and nothing else
/// changed. Taking them back needs no memory.
///
/// Example:
/// ```
/// CacheRollback rollback(caches);
/// for (size_t i = 0; i < layers.size(); ++i) {
///   x = layers[i]->decode(x, caches[i]); // may throw
/// }
/// rollback.commit();
/// ```
class TORCH_ATTENTION_API CacheRollback {
 public:
  /// The caches have to stay at their places in memory.
  explicit CacheRollback(std::vector<KVCache>& caches);

  /// For sequences of several `BlockCache`s, such as those of one text in each
  /// layer. Throws c10::Error if one was dropped.
  explicit CacheRollback(const std::vector<BlockBatch>& batches);

  CacheRollback(const CacheRollback&) = delete;
  CacheRollback& operator=(const CacheRollback&) = delete;
  ~CacheRollback();

  /// Keeps what was appended.
  void commit() noexcept;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

} // namespace torch_attention
