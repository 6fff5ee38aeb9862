#pragma once

#include <cpu/attention.h>

#include <cstdint>

/// Rows of int8 with a scale each, as caches store keys and values.
namespace torch_attention::cpu {

/// The bytes of a row's scale, a float.
constexpr int64_t kScaleBytes = 4;

/// Rows (B, heads, tokens, size). X is float, BFloat16 or Float16.
template <typename X>
struct Int8RowsArguments {
  int64_t batch_size = 0;
  int64_t num_heads = 0;
  int64_t num_tokens = 0;
  int64_t size = 0;
};

/// Sets each row of `to`, `size + kScaleBytes` bytes, to a row of x: the scale
/// is the largest absolute number / 127, and numbers are x / scale, rounded to
/// the nearest integer, ties to even. A row whose scale is 0 becomes 0, and one
/// that is not finite 0 with the scale NaN.
template <typename X>
void quantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Heads<const X>& x,
    const Heads<int8_t>& to,
    const Threads& threads);

/// Sets each row of `to` to the numbers times the scale of a row of `from`,
/// which is `from.scale` bytes after the row's beginning.
template <typename X>
void dequantize_rows(
    const Int8RowsArguments<X>& sizes,
    const Int8Rows& from,
    const Heads<X>& to,
    const Threads& threads);

} // namespace torch_attention::cpu
