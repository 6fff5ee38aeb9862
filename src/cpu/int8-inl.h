// Rows of int8: their numbers as floats, and the memory for their products.

#if defined(TORCH_ATTENTION_CPU_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_INT8_INL_H_
#undef TORCH_ATTENTION_CPU_INT8_INL_H_
#else
#define TORCH_ATTENTION_CPU_INT8_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

template <typename D>
HWY_INLINE hn::VFromD<D> load(D d, const int8_t* x) {
  const hn::Rebind<int8_t, D> bytes;
  const hn::Rebind<int32_t, D> integers;
  return hn::ConvertTo(d, hn::PromoteTo(integers, hn::LoadU(bytes, x)));
}

HWY_INLINE float scale_at(const int8_t* at) {
  float scale = 0;
  std::memcpy(&scale, at, sizeof(scale));
  return scale;
}

/// Sets row r of `to` to the n numbers of row r of `from`, whose scale is
/// `scale` bytes after its beginning.
template <typename Y>
HWY_INLINE void unpack_int8(
    const int8_t* from,
    int64_t from_row,
    int64_t rows,
    int64_t n,
    int64_t scale,
    Y* to,
    int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto* row = from + r * from_row;
    const auto factor = scale_at(row + scale);
    store_each<float>(to + r * to_row, n, [&](int64_t c, auto d) {
      return hn::Mul(load(d, row + c), hn::Set(d, factor));
    });
  }
}

/// Returns the largest absolute number of n, or NaN if one is not finite.
template <typename X>
HWY_INLINE float largest_or_nan(const X* x, int64_t n) {
  const Tag<float> d;
  constexpr int N = kLanes<float>;
  auto most = hn::Zero(d);
  auto unusual = hn::Zero(d);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    const auto in = load(d, x + i);
    most = hn::Max(most, hn::Abs(in));
    unusual = hn::MulAdd(in, hn::Zero(d), unusual);
  }
  auto largest = hn::GetLane(hn::MaxOfLanes(d, most));
  auto rest = hn::GetLane(hn::SumOfLanes(d, unusual));
  for (; i < n; ++i) {
    const auto in = get(x + i);
    largest = std::max(largest, std::abs(in));
    rest += in * 0;
  }
  return largest + rest;
}

/// True if attention of X may read keys of int8.
template <typename X>
constexpr bool kMayReadInt8 = std::is_same_v<X, float>;

/// True if this instruction set multiplies 16-bit integers by pairs.
constexpr bool kHasIntegerPairs = HWY_TARGET == HWY_AVX3;

/// Returns true if the kernels multiply int8 as pairs of 16-bit integers.
inline bool multiplies_integer_pairs() {
  return kHasIntegerPairs && has_pairs(instruction_set());
}

/// Memory of rows that attend to keys of int8 by pairs of integers.
struct Int8Memory {
  int16_t* query = nullptr; // (rows, D padded)
  float* query_scale = nullptr; // (rows)
  int16_t* weights = nullptr; // (rows, kKeyBlock)
  float* weight_scale = nullptr; // (rows)
  float* scales = nullptr; // (kKeyBlock), of keys or values

  Int8Memory() = default;
  Int8Memory(Parts& parts, int64_t padded_dim, int64_t rows)
      : query(parts.take<int16_t>(rows * padded_dim)),
        query_scale(parts.take<float>(rows)),
        weights(parts.take<int16_t>(rows * kKeyBlock)),
        weight_scale(parts.take<float>(rows)),
        scales(parts.take<float>(kKeyBlock)) {}
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
