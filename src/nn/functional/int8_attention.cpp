#include <nn/functional/int8_attention.h>

#include <kernels/choice.h>
#include <kernels/int8_rows.h>
#include <nn/cache_checks.h>
#include <nn/cache_state.h>
#include <nn/functional/attend.h>
#include <nn/functional/checked_attention.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/same_bits.h>

#include <ATen/ops/empty.h>

#include <optional>

namespace torch_attention::functional::detail {

namespace {

/// Returns whether the kernel for rows of int8 computes attention of `query`,
/// if the rest of the call allows it.
bool may_attend_by_rows(const torch::Tensor& query, const Int8Cache& cache) {
  // Measured: with more, the conversion of all keys takes less. It gives other
  // bits.
  constexpr int64_t kMostRows = 256;
  // So long sums of products fit their integers.
  constexpr int64_t kLargestHead = 8192;
  return cache.device.is_cpu() && query.defined() && query.is_cpu() &&
      query.dim() == 4 && query.is_floating_point() &&
      (same_bits() || query.size(1) / cache.G * query.size(2) <= kMostRows) &&
      cache.D <= kLargestHead;
}

/// Computes attention of a query that `may_attend_by_rows`. Returns nothing if
/// the rest of the call does not allow it.
std::optional<torch::Tensor> attend_by_rows(
    const torch::Tensor& query,
    const Int8Cache& cache,
    const ScaledDotProductAttentionFuncOptions& options) {
  // Sizes alone matter.
  const auto sized = [&](int64_t size) {
    return at::empty({1, 1, 1, size}, query.options().dtype(torch::kFloat))
        .expand({cache.B, cache.G, cache.S, size});
  };
  const auto sizes = sized(cache.D);
  auto attention = checked_attention(
      query.to(torch::kFloat), sizes, sized(cache.Dv), options);
  // Key heads may have been broadcast.
  if (attention.key.sizes() != sizes.sizes() ||
      !kernels::reads_blocks(attention, options.kernel())) {
    return std::nullopt;
  }
  attention.int8 = &cache.rows;
  attention.blocks = cache.blocks;
  return kernels::compute(kernels::Choice::kTiled, attention)
      .to(query.scalar_type());
}

torch::Tensor attend_to_int8_slab(
    const torch::Tensor& query,
    const KVCache& cache,
    const ScaledDotProductAttentionFuncOptions& options) {
  using torch_attention::detail::CacheState;
  const auto& has = cache.options();
  const auto D = has.head_dim();
  const auto Dv = checks::value_dim(has);
  const auto keys = CacheState::stored_keys(cache);
  const auto values =
      has.values_in_keys() ? keys : CacheState::stored_values(cache);
  return attend_to_int8(
      query,
      {has.device(),
       keys.size(0),
       keys.size(1),
       keys.size(2),
       D,
       Dv,
       {keys, values, D, has.values_in_keys() ? D : Dv},
       /*blocks=*/nullptr,
       [&](torch::Dtype dtype) {
         return std::pair(
             kernels::dequantized(keys, D, dtype),
             kernels::dequantized(values, Dv, dtype));
       }},
      options);
}

} // namespace

torch::Tensor attend_to_int8(
    const torch::Tensor& query,
    const Int8Cache& cache,
    const ScaledDotProductAttentionFuncOptions& options) {
  if (may_attend_by_rows(query, cache)) {
    if (const auto output = attend_by_rows(query, cache, options)) {
      return *output;
    }
  }
  // A query that is not floating-point is refused by the checks of attention.
  const auto [keys, values] = cache.converted(
      query.defined() && query.is_floating_point() ? query.scalar_type()
                                                   : torch::kFloat);
  return attend(query, keys, values, options, {});
}

torch::Tensor attend(
    const torch::Tensor& query,
    const KVCache& cache,
    const ScaledDotProductAttentionFuncOptions& options) {
  const auto dtype = cache.options().dtype();
  if (dtype == torch::kInt8) {
    return attend_to_int8_slab(query, cache, options);
  }
  return scaled_dot_product_attention(
             query.to(dtype), cache.keys(), cache.values(), options)
      .to(query.scalar_type());
}

} // namespace torch_attention::functional::detail
