#include <torch_attention/nn/block_cache.h>

#include <nn/block_store.h>
#include <nn/cache_checks.h>
#include <nn/checks.h>

#include <utility>

namespace torch_attention {

BlockCacheOptions::BlockCacheOptions(int64_t num_kv_heads, int64_t head_dim)
    : num_kv_heads_(num_kv_heads), head_dim_(head_dim) {}

BlockBatch::BlockBatch(
    std::shared_ptr<detail::BlockStore> store,
    std::vector<int64_t> sequences)
    : store_(std::move(store)), sequences_(std::move(sequences)) {}

torch::Tensor BlockBatch::lengths() const {
  const auto lengths = at::empty({size()}, torch::kLong);
  auto* length = lengths.mutable_data_ptr<int64_t>();
  for (const auto sequence : sequences_) {
    *length++ = store_->length(sequence);
  }
  return lengths;
}

torch::Tensor BlockBatch::keys() const {
  return store_->gather_keys(sequences_);
}

torch::Tensor BlockBatch::values() const {
  return store_->gather_values(sequences_);
}

void BlockBatch::append(
    const torch::Tensor& keys,
    const torch::Tensor& values,
    const torch::Tensor& new_lengths) const {
  store_->commit(append_to_undo(keys, values, new_lengths));
}

std::vector<detail::BlockBefore> BlockBatch::append_to_undo(
    const torch::Tensor& keys,
    const torch::Tensor& values,
    const torch::Tensor& new_lengths) const {
  const torch::NoGradGuard no_grad;
  const auto& options = store_->options();
  const auto B = size();
  checks::check_new_rows(
      detail::kBlockCache, "sequences", keys, values, B, options);
  const auto T = keys.size(2);
  std::vector<int64_t> counts(sequences_.size(), T);
  if (new_lengths.defined()) {
    const auto checked = checks::to_counts(
        detail::kBlockCache, "new_lengths", new_lengths, B, T);
    const auto* numbers = checked.const_data_ptr<int64_t>();
    counts.assign(numbers, numbers + B);
  }
  return store_->append(sequences_, keys, values, counts);
}

BlockCache::BlockCache(const BlockCacheOptions& options)
    : store_(std::make_shared<detail::BlockStore>(options)) {}

int64_t BlockCache::admit() {
  return store_->admit();
}

int64_t BlockCache::fork(int64_t sequence) {
  return store_->fork(sequence);
}

void BlockCache::drop(int64_t sequence) {
  store_->drop(sequence);
}

void BlockCache::truncate(int64_t sequence, int64_t length) {
  store_->truncate(sequence, length);
}

int64_t BlockCache::least_length(int64_t sequence) const {
  return checks::least_length(
      store_->options(), store_->num_freed_tokens(sequence));
}

BlockBatch BlockCache::batch(std::vector<int64_t> sequences) const {
  store_->check_batch(sequences);
  return {store_, std::move(sequences)};
}

int64_t BlockCache::length(int64_t sequence) const {
  return store_->length(sequence);
}

int64_t BlockCache::num_sequences() const {
  return store_->num_sequences();
}

int64_t BlockCache::num_blocks() const {
  return store_->pool().num_used();
}

int64_t BlockCache::num_free_blocks() const {
  return store_->pool().num_free();
}

size_t BlockCache::nbytes() const {
  return store_->pool().nbytes();
}

void BlockCache::shrink() {
  store_->shrink();
}

const BlockCacheOptions& BlockCache::options() const {
  return store_->options();
}

} // namespace torch_attention
