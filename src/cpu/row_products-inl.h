// Products of few rows with many: each is the sum of the lanes of vectors.

#if defined(TORCH_ATTENTION_CPU_ROW_PRODUCTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_ROW_PRODUCTS_INL_H_
#undef TORCH_ATTENTION_CPU_ROW_PRODUCTS_INL_H_
#else
#define TORCH_ATTENTION_CPU_ROW_PRODUCTS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/vector-inl.h>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Stores the sum of the 128-bit blocks of `x`.
template <typename V, typename D>
HWY_INLINE void store_sum_of_blocks(V x, D d, hn::TFromD<D>* to) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    store(x, d, to);
  } else {
    const hn::Half<D> half;
    store_sum_of_blocks(
        hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), half, to);
  }
}

/// Sets to[i] = sum of the lanes of `sums[i]`, for four vectors at once: one at
/// a time would take three times the shuffles.
template <typename T>
HWY_INLINE void store_sums_of_lanes(
    Vector<T> sum0,
    Vector<T> sum1,
    Vector<T> sum2,
    Vector<T> sum3,
    T* to) {
  const Tag<T> d;
  if constexpr (sizeof(T) == 4) {
    const hn::Repartition<double, Tag<T>> pairs;
    const auto joined = [&](Vector<T> x, Vector<T> y) {
      return hn::Add(
          hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
    };
    const auto low = hn::BitCast(pairs, joined(sum0, sum1));
    const auto high = hn::BitCast(pairs, joined(sum2, sum3));
    // In each 128 bits one number of each sum.
    const auto blocks = hn::Add(
        hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
        hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
    store_sum_of_blocks(blocks, d, to);
  } else {
    to[0] = hn::GetLane(hn::SumOfLanes(d, sum0));
    to[1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    to[2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    to[3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
}

/// The rows that others are multiplied with at once: as many as there are
/// registers for.
constexpr int kMaxRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4
    : HWY_TARGET == HWY_EMU128                        ? 1
                                                      : 2;

/// A multiply-add of numbers.
struct AddProduct {
  template <typename V>
  HWY_INLINE V operator()(V a, V b, V sum) const {
    return hn::MulAdd(a, b, sum);
  }
};

/// A multiply-add of pairs of bfloat16, each stored as a float.
struct AddProductOfPairs {
  template <typename V>
  HWY_INLINE V operator()(V a, V b, V sum) const {
    return add_products_of_pairs(a, b, sum);
  }
};

/// The prefetches while rows are read: for each bit j of `rows`, the position
/// `numbers` ahead in row j.
struct Ahead {
  int64_t numbers = 0;
  unsigned rows = 0;
};

/// Returns which of four rows one of the passes over them prefetches, as bits:
/// the prefetches are spread over the passes.
inline unsigned rows_asked_in(int64_t pass, int64_t passes) {
  unsigned rows = 0;
  for (unsigned j = 0; j < 4; ++j) {
    if (j * passes / 4 == pass) {
      rows |= 1U << j;
    }
  }
  return rows;
}

/// to[r][j] = sum over i < n of x[r][i] * y[j][i], for kRows rows of x and four
/// of y; n is a multiple of the lanes.
template <int kRows, typename T, typename Y, typename Add = AddProduct>
HWY_INLINE void multiply_four_rows(
    const T* x,
    int64_t x_row,
    const Y* y,
    int64_t y_row,
    int64_t n,
    const Ahead& ahead,
    T* to,
    int64_t to_row,
    const Add& add_product = {}) {
  const Tag<T> d;
  Vector<T> sum[kRows][4];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      sum[r][j] = hn::Zero(d);
    }
  }
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    Vector<T> in[4];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      if ((ahead.rows >> j & 1) != 0) {
        // Into the level 2 cache, since it may be far ahead. Not in a lambda:
        // GCC takes one that only prefetches for one without effect, and leaves
        // it out.
        __builtin_prefetch(y + j * y_row + i + ahead.numbers, 0, 2);
      }
      in[j] = load(d, y + j * y_row + i);
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const auto factor = load(d, x + r * x_row + i);
      HWY_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        sum[r][j] = add_product(factor, in[j], sum[r][j]);
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    store_sums_of_lanes(
        sum[r][0], sum[r][1], sum[r][2], sum[r][3], to + r * to_row);
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
