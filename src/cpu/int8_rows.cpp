#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/int8_rows.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/int8-inl.h>
#include <cpu/int8_rows.h>
#include <cpu/tasks.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

template <typename X>
HWY_INLINE void quantize_row(const X* x, int64_t n, int8_t* to) {
  constexpr float kMost = 127;
  const auto largest = largest_or_nan(x, n);
  const bool finite = std::isfinite(largest);
  const auto scale =
      finite ? largest / kMost : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(to + n, &scale, sizeof(scale));
  if (!finite || scale == 0) {
    std::memset(to, 0, static_cast<size_t>(n));
    return;
  }
  for_lanes<float>(n, [&](int64_t i, auto d) {
    const hn::Rebind<int8_t, decltype(d)> bytes;
    // The quotient of the smallest scales is larger than 127.
    const auto quotient = hn::Div(load(d, x + i), hn::Set(d, scale));
    const auto number =
        hn::Clamp(hn::Round(quotient), hn::Set(d, -kMost), hn::Set(d, kMost));
    hn::StoreU(hn::DemoteTo(bytes, hn::NearestInt(number)), bytes, to + i);
  });
}

/// Calls `fn(b, h, t)` for each row.
template <typename X, typename Fn>
void for_each_row(
    const Int8RowsArguments<X>& sizes,
    const Threads& threads,
    const Fn& fn) {
  run_tasks_of_tokens(
      threads,
      sizes.batch_size,
      sizes.num_tokens,
      sizes.num_heads * sizes.size,
      [&](int64_t b, int64_t t) {
        for (int64_t h = 0; h < sizes.num_heads; ++h) {
          fn(b, h, t);
        }
      });
}

template <typename X>
void quantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Heads<const X>& x,
    const Heads<int8_t>& to,
    const Threads& threads) {
  for_each_row(sizes, threads, [&](int64_t b, int64_t h, int64_t t) {
    quantize_row(
        at(x, b, h) + t * x.strides.token,
        sizes.size,
        at(to, b, h) + t * to.strides.token);
  });
}

template <typename X>
void dequantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Int8Rows& from,
    const Heads<X>& to,
    const Threads& threads) {
  const auto& rows = from.rows;
  for_each_row(sizes, threads, [&](int64_t b, int64_t h, int64_t t) {
    unpack_int8(
        at(rows, b, h) + t * rows.strides.token,
        /*from_row=*/0,
        /*rows=*/1,
        sizes.size,
        from.scale,
        at(to, b, h) + t * to.strides.token,
        /*to_row=*/0);
  });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void quantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Heads<const X>& x,
    const Heads<int8_t>& to,
    const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(quantize_rows(sizes, x, to, threads));
}

template <typename X>
void dequantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Int8Rows& from,
    const Heads<X>& to,
    const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(dequantize_rows(sizes, from, to, threads));
}

#define TORCH_ATTENTION_INSTANTIATE(X) \
  template void quantize_rows(         \
      const Int8RowsArguments<X>&,     \
      const Heads<const X>&,           \
      const Heads<int8_t>&,            \
      const Threads&);                 \
  template void dequantize_rows(       \
      const Int8RowsArguments<X>&,     \
      const Int8Rows&,                 \
      const Heads<X>&,                 \
      const Threads&)
TORCH_ATTENTION_INSTANTIATE(float);
TORCH_ATTENTION_INSTANTIATE(BFloat16);
TORCH_ATTENTION_INSTANTIATE(Float16);
#undef TORCH_ATTENTION_INSTANTIATE

} // namespace torch_attention::cpu

#endif // HWY_ONCE
