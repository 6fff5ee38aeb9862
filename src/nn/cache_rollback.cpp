#include <torch_attention/nn/cache_rollback.h>

#include <nn/cache_state.h>

#include <utility>

namespace torch_attention {

struct CacheRollback::Before {
  std::vector<std::pair<KVCache*, detail::CacheState::State>> caches;
};

CacheRollback::CacheRollback(std::vector<KVCache>& caches)
    : before_(std::make_unique<Before>()) {
  before_->caches.reserve(caches.size());
  for (auto& cache : caches) {
    before_->caches.emplace_back(&cache, detail::CacheState::of(cache));
  }
}

CacheRollback::~CacheRollback() {
  if (before_ == nullptr) {
    return;
  }
  for (auto& [cache, state] : before_->caches) {
    detail::CacheState::restore(*cache, std::move(state));
  }
}

void CacheRollback::commit() noexcept {
  before_.reset();
}

} // namespace torch_attention
