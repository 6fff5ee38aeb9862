#include <torch_attention/nn/functional/paged_attention.h>

#include <kernels/attention.h>
#include <kernels/choice.h>
#include <nn/block_store.h>
#include <nn/checks.h>
#include <nn/functional/attend.h>
#include <nn/functional/checked_attention.h>

#include <algorithm>

namespace torch_attention::functional {

namespace detail {

torch::Tensor attend(
    const torch::Tensor& query,
    const torch_attention::detail::BlockStore& store,
    torch::IntArrayRef sequences,
    const ScaledDotProductAttentionFuncOptions& options) {
  const auto& pool = store.pool();
  const auto B = static_cast<int64_t>(sequences.size());
  const auto S = store.most_tokens(sequences);
  const auto sized = [&](const torch::Tensor& row) {
    return row.expand({B, store.options().num_kv_heads(), S, row.size(3)});
  };
  const auto keys = sized(pool.key_row());
  auto attention =
      checked_attention(query, keys, sized(pool.value_row()), options);
  // Key heads may have been broadcast.
  if (attention.key.sizes() == keys.sizes() &&
      kernels::reads_blocks(attention, options.kernel())) {
    const auto blocks = store.blocks_of(sequences);
    attention.blocks = &blocks;
    return kernels::compute(kernels::Choice::kTiled, attention);
  }
  return attend(
      query,
      store.gather_keys(sequences),
      store.gather_values(sequences),
      options,
      {});
}

} // namespace detail

torch::Tensor paged_attention(
    const torch::Tensor& query,
    const BlockBatch& sequences,
    ScaledDotProductAttentionFuncOptions options) {
  const auto lengths = sequences.lengths();
  const auto* length = lengths.const_data_ptr<int64_t>();
  const auto B = lengths.size(0);
  const auto most = *std::max_element(length, length + B);
  const auto differs = [&](int64_t n) { return n != most; };
  const bool any_differs = std::any_of(length, length + B, differs);
  if (options.key_lengths().defined()) {
    // A shorter sequence has no blocks for more keys.
    const auto counts = checks::to_counts(
        "paged_attention", "key_lengths", options.key_lengths(), B, most);
    options.key_lengths(lengths.minimum(counts));
  } else if (any_differs) {
    options.key_lengths(lengths);
  }
  // Otherwise the default is right, and a tensor would take time.
  if (any_differs && !options.query_offsets().defined() && query.defined() &&
      query.dim() >= 2) {
    options.query_offsets(lengths - query.size(-2));
  }
  using torch_attention::detail::BlockAccess;
  return detail::attend(
      query, BlockAccess::store(sequences), sequences.sequences(), options);
}

} // namespace torch_attention::functional
