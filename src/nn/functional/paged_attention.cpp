#include <torch_attention/nn/functional/paged_attention.h>

#include <check.h>
#include <kernels/attention.h>
#include <kernels/choice.h>
#include <kernels/positions.h>
#include <nn/block_store.h>
#include <nn/cache_checks.h>
#include <nn/checks.h>
#include <nn/functional/attend.h>
#include <nn/functional/checked_attention.h>
#include <nn/functional/int8_attention.h>

#include <algorithm>
#include <utility>

namespace torch_attention::functional {

namespace detail {

namespace {

torch::Tensor attend_to_int8_blocks(
    const torch::Tensor& query,
    const torch_attention::detail::BlockStore& store,
    torch::IntArrayRef sequences,
    const ScaledDotProductAttentionFuncOptions& options) {
  const auto& has = store.options();
  const auto D = has.head_dim();
  const auto Dv = checks::value_dim(has);
  const auto blocks = store.blocks_of(sequences);
  return attend_to_int8(
      query,
      {has.device(),
       static_cast<int64_t>(sequences.size()),
       has.num_kv_heads(),
       store.most_tokens(sequences),
       D,
       Dv,
       {{}, {}, D, has.values_in_keys() ? D : Dv},
       &blocks,
       [&](torch::Dtype dtype) {
         return std::pair(
             store.gather_keys(sequences, dtype),
             store.gather_values(sequences, dtype));
       }},
      options);
}

} // namespace

torch::Tensor attend(
    const torch::Tensor& query,
    const torch_attention::detail::BlockStore& store,
    torch::IntArrayRef sequences,
    const ScaledDotProductAttentionFuncOptions& options) {
  if (store.options().dtype() == torch::kInt8) {
    return attend_to_int8_blocks(query, store, sequences, options);
  }
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

namespace {

/// Checks that no query reads a token whose block is freed. Arguments that do
/// not fit are left to the checks of attention.
void check_keeps_keys(
    const torch::Tensor& query,
    const torch_attention::detail::BlockStore& store,
    torch::IntArrayRef sequences,
    const ScaledDotProductAttentionFuncOptions& options) {
  if (!store.options().window() && !store.options().chunk()) {
    return;
  }
  const auto& offsets = options.query_offsets();
  const auto B = static_cast<int64_t>(sequences.size());
  const bool has_offsets = offsets.defined();
  if (!query.defined() || query.dim() < 2 ||
      (has_offsets &&
       !(offsets.dim() == 1 && offsets.size(0) == B &&
         c10::isIntegralType(offsets.scalar_type(), /*includeBool=*/false)))) {
    return;
  }
  const auto T = query.size(-2);
  const auto S = store.most_tokens(sequences);
  for (int64_t b = 0; b < B; ++b) {
    const auto sequence = sequences[static_cast<size_t>(b)];
    const auto freed = store.num_freed_tokens(sequence);
    if (freed == 0) {
      continue;
    }
    const auto offset = has_offsets ? offsets[b].item<int64_t>() : S - T;
    const auto first =
        kernels::visible_keys(options.rule(), offset, T, S).first;
    TORCH_ATTENTION_CHECK(
        first >= freed,
        "BlockCache: expected queries that read no token before {}, since "
        "those of sequence {} are freed ({}), but got one at {} that reads "
        "from {} on; give a window or chunk that is not larger than the "
        "cache's",
        freed,
        sequence,
        store.options().chunk() ? "chunk" : "window",
        offset,
        first);
  }
}

} // namespace

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
  const auto& store = BlockAccess::store(sequences);
  check_keeps_keys(query, store, sequences.sequences(), options);
  return detail::attend(query, store, sequences.sequences(), options);
}

} // namespace torch_attention::functional
