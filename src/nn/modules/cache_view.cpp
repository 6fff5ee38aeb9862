#include <nn/modules/cache_view.h>

#include <nn/functional/attend.h>

#include <ATen/ops/zeros.h>

namespace torch_attention::detail {

torch::Tensor SlabView::attend(
    const torch::Tensor& query,
    const functional::ScaledDotProductAttentionFuncOptions& options) const {
  return functional::detail::attend(query, cache_, options);
}

void SlabView::append(
    const torch::Tensor& keys,
    const torch::Tensor& values,
    const torch::Tensor& counts) {
  before_ = CacheState::of(cache_);
  cache_.append(keys, values, counts);
}

void SlabView::undo() noexcept {
  CacheState::restore(cache_, std::move(*before_));
}

void SlabView::commit() noexcept {
  before_.reset();
}

BlocksView::BlocksView(const BlockBatch& batch)
    : batch_(batch),
      store_(BlockAccess::store(batch)),
      options_(
          batch.size(),
          store_.options().num_kv_heads(),
          store_.options().head_dim()) {
  const auto& has = store_.options();
  options_.value_dim(has.value_dim())
      .values_in_keys(has.values_in_keys())
      .window(has.window())
      .chunk(has.chunk())
      .dtype(has.dtype())
      .device(has.device());
}

torch::Tensor BlocksView::starts() const {
  return at::zeros({batch_.size()}, torch::kLong);
}

int64_t BlocksView::peak_length(int64_t b) const {
  return store_.peak_length(batch_.sequences()[static_cast<size_t>(b)]);
}

int64_t BlocksView::num_rows() const {
  return store_.most_tokens(batch_.sequences());
}

torch::Tensor BlocksView::attend(
    const torch::Tensor& query,
    const functional::ScaledDotProductAttentionFuncOptions& options) const {
  const auto dtype = store_.options().dtype();
  return functional::detail::attend(
             dtype == torch::kInt8 ? query : query.to(dtype),
             store_,
             batch_.sequences(),
             options)
      .to(query.scalar_type());
}

void BlocksView::append(
    const torch::Tensor& keys,
    const torch::Tensor& values,
    const torch::Tensor& counts) {
  before_ = BlockAccess::append(batch_, keys, values, counts);
}

void BlocksView::undo() noexcept {
  store_.undo(before_);
}

void BlocksView::commit() noexcept {
  store_.commit(before_);
}

} // namespace torch_attention::detail
