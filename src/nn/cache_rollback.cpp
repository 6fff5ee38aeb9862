#include <torch_attention/nn/cache_rollback.h>

#include <nn/block_store.h>
#include <nn/cache_state.h>

#include <utility>

namespace torch_attention {

struct CacheRollback::Before {
  struct Blocks {
    std::shared_ptr<detail::BlockStore> store;
    std::vector<detail::BlockBefore> sequences;
  };

  Before() = default;
  Before(const Before&) = delete;
  Before& operator=(const Before&) = delete;

  ~Before() {
    for (auto& [cache, state] : caches) {
      detail::CacheState::restore(*cache, std::move(state));
    }
    for (const auto& [store, sequences] : blocks) {
      store->undo(sequences);
    }
  }

  std::vector<std::pair<KVCache*, detail::CacheState::State>> caches;
  std::vector<Blocks> blocks;
};

CacheRollback::CacheRollback(std::vector<KVCache>& caches)
    : before_(std::make_unique<Before>()) {
  before_->caches.reserve(caches.size());
  for (auto& cache : caches) {
    before_->caches.emplace_back(&cache, detail::CacheState::of(cache));
  }
}

CacheRollback::CacheRollback(const std::vector<BlockBatch>& batches)
    : before_(std::make_unique<Before>()) {
  before_->blocks.reserve(batches.size());
  for (const auto& batch : batches) {
    auto store = detail::BlockAccess::shared_store(batch);
    auto sequences = store->hold(batch.sequences());
    before_->blocks.push_back({std::move(store), std::move(sequences)});
  }
}

CacheRollback::~CacheRollback() = default;

void CacheRollback::commit() noexcept {
  before_->caches.clear();
  for (const auto& [store, sequences] : before_->blocks) {
    store->commit(sequences);
  }
  before_->blocks.clear();
}

} // namespace torch_attention
