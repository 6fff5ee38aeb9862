// The products in which the kernels spend their time. All have one form, which
// never rearranges vectors:
//
//   result[r][lane] += sum over i of a[r][i] * x[i][lane]
//
// A tile of `result` stays in registers; each a[r][i] is broadcast.
//
//   scores     S^T[key][query]   += K[key][d]   * Q^T[d][query]
//   output     O^T[e][query]     += V^T[e][key] * P^T[key][query]
//   gradients  dV[key][e]        += P^T[key][query] * dO[query][e]

#if defined(TORCH_ATTENTION_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_PRODUCTS_INL_H_
#undef TORCH_ATTENTION_CPU_PRODUCTS_INL_H_
#else
#define TORCH_ATTENTION_CPU_PRODUCTS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/vector-inl.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

// The shapes that reach the peak: enough accumulators to hide the latency of
// the multiply-add, but no more than there are registers. There are more rows
// than vectors, since a broadcast is a load as well but serves more
// multiply-adds.
#if HWY_TARGET <= HWY_AVX3
constexpr int kMaxVectors = 2;
constexpr int rows_for(int vectors) {
  return vectors == 1 ? 16 : vectors == 2 ? 8 : 4;
}
/// For the products with head_dim on the lanes.
constexpr int kMaxFeatureVectors = 4;
#elif HWY_TARGET == HWY_AVX2
constexpr int kMaxVectors = 3;
constexpr int rows_for(int vectors) {
  return vectors == 1 ? 12 : vectors == 2 ? 6 : 4;
}
constexpr int kMaxFeatureVectors = 2;
#elif HWY_TARGET == HWY_EMU128
// Few shapes: these are compiled for correctness, not for speed.
constexpr int kMaxVectors = 1;
constexpr int rows_for(int /*vectors*/) {
  return 4;
}
constexpr int kMaxFeatureVectors = 1;
#else
constexpr int kMaxVectors = 3;
constexpr int rows_for(int vectors) {
  return vectors == 1 ? 8 : vectors == 2 ? 6 : 4;
}
constexpr int kMaxFeatureVectors = 2;
#endif

/// The most queries in a tile of scores.
template <typename T>
constexpr int kMaxTileQueries = kMaxVectors* kLanes<T>;

/// Calls `fn` with `vectors`, which is 1 to kMax, as a constant.
template <int kMax, typename Fn>
HWY_INLINE void with_constant(int vectors, const Fn& fn) {
  if constexpr (kMax > 1) {
    if (vectors < kMax) {
      with_constant<kMax - 1>(vectors, fn);
      return;
    }
  }
  fn(std::integral_constant<int, kMax>());
}

/// A matrix whose elements are broadcast: a[r][i] is at r * row + i * step.
template <typename T>
struct Broadcast {
  const T* data;
  int64_t row;
  int64_t step;
  /// The prefetch distance in elements; 0: no prefetch.
  int64_t ahead = 0;
};

/// Prefetches the elements `a.ahead` after a[0 to kRows][i]: each cache line
/// once as i passes over the rows.
template <int kRows, bool kUnitStep, typename T>
HWY_INLINE void prefetch_ahead(const Broadcast<T>& a, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  if (kUnitStep) {
    const auto column = i / kLine * kLine;
    for (int64_t r = i - column; r < kRows; r += kLine) {
      hwy::Prefetch(a.data + a.ahead + r * a.row + column);
    }
  } else {
    for (int64_t r = 0; r < kRows; r += kLine) {
      hwy::Prefetch(a.data + a.ahead + r + i * a.step);
    }
  }
}

/// The rows that are read next, and the bytes of each that are prefetched
/// during a product.
struct NextRows {
  const void* data = nullptr;
  int64_t row = 0; // bytes apart
  int64_t begin = 0;
  int64_t end = 0; // none are prefetched if it is `begin`

  HWY_INLINE bool any() const {
    return begin < end;
  }

  /// Returns the bytes from `first` to `last` of `all` parts of the rows.
  HWY_INLINE NextRows part(int64_t first, int64_t last, int64_t all) const {
    constexpr int64_t kLine = 64;
    if (!any()) {
      return {};
    }
    const auto lines = (end - begin + kLine - 1) / kLine;
    auto some = *this;
    some.begin = begin + lines * first / all * kLine;
    some.end = std::min(end, begin + lines * last / all * kLine);
    return some;
  }

  HWY_INLINE void ask_for(int64_t i) const {
    const auto* at = static_cast<const char*>(data) + i * row;
    for (auto b = begin; b < end; b += 64) {
      __builtin_prefetch(at + b, 0, 2); // into the level 2 cache
    }
  }
};

/// The start values of the accumulators. kAddLast starts at 0 and adds the
/// earlier results to the sums, so that large ones do not round each term.
enum class Start { kZero, kLoad, kScale, kAddLast };

/// The terms that are left out of the sum, so that 0 * NaN is not NaN.
enum class Skip { kNothing, kZeroVector, kZeroBroadcast };

/// The settings of a product.
template <Start kStart_, Skip kSkip_ = Skip::kNothing, bool kMaximum_ = false>
struct Product {
  static constexpr Start kStart = kStart_;
  static constexpr Skip kSkip = kSkip_;
  /// True if `maximum` is raised to the results.
  static constexpr bool kMaximum = kMaximum_;
  /// True if a and x are pairs of bfloat16.
  static constexpr bool kPairs = false;
  /// True if the results are multiplied by `factor`.
  static constexpr bool kFactor = false;
};

/// The settings of a product of pairs.
template <typename P, bool kFactor_ = false>
struct PairProduct : P {
  static constexpr bool kPairs = true;
  static constexpr bool kFactor = kFactor_;
};

/// Pointers to `scale` and `maximum`, with one number for each lane, and the
/// factor of all results.
template <typename T>
struct Lanes {
  const T* scale = nullptr;
  T* maximum = nullptr;
  T factor = 1;
};

/// Returns sum + factor * in, of pairs if P has them, leaving out what P skips.
template <typename P, typename V>
HWY_INLINE V multiply_add(V factor, V in, V sum) {
  if constexpr (P::kPairs) {
    return add_products_of_pairs(
        P::kSkip == Skip::kZeroVector ? zero_beside_zero(factor, in) : factor,
        P::kSkip == Skip::kZeroBroadcast ? zero_beside_zero(in, factor) : in,
        sum);
  } else if constexpr (P::kSkip == Skip::kNothing) {
    return hn::MulAdd(factor, in, sum);
  } else {
    const auto weight = P::kSkip == Skip::kZeroVector ? in : factor;
    const auto zero = hn::Zero(hn::DFromV<V>());
    return hn::IfThenElse(
        hn::Eq(weight, zero), sum, hn::MulAdd(factor, in, sum));
  }
}

/// Computes kRows rows of kVectors vectors. The rows of `x` and `result` are
/// x_row and result_row apart. kUnitStep: a.step is 1, else a.row is.
template <
    typename P,
    int kVectors,
    int kRows,
    bool kUnitStep,
    typename T,
    typename X>
HWY_INLINE void product_in_registers(
    const Broadcast<T>& a,
    const X* HWY_RESTRICT x,
    int64_t x_row,
    int64_t n,
    T* HWY_RESTRICT result,
    int64_t result_row,
    const Lanes<T>& lanes,
    const NextRows& next) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  Vector<T> sum[kRows][kVectors];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (P::kStart == Start::kZero || P::kStart == Start::kAddLast) {
        sum[r][v] = hn::Zero(d);
      } else {
        sum[r][v] = load(d, result + r * result_row + v * N);
        if constexpr (P::kStart == Start::kScale) {
          sum[r][v] = hn::Mul(sum[r][v], load(d, lanes.scale + v * N));
        }
      }
    }
  }
  const T* HWY_RESTRICT a_data = a.data;
  for (int64_t i = 0; i < n; ++i) {
    if (a.ahead != 0) {
      prefetch_ahead<kRows, kUnitStep>(a, i);
    }
    next.ask_for(i);
    Vector<T> in[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      in[v] = load(d, x + v * N);
    }
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, kUnitStep ? a_data[r * a.row] : a_data[r]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = multiply_add<P>(factor, in[v], sum[r][v]);
      }
    }
    x += x_row;
    a_data += kUnitStep ? 1 : a.step;
  }
  if constexpr (P::kStart == Start::kAddLast) {
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] =
            hn::Add(sum[r][v], load(d, result + r * result_row + v * N));
      }
    }
  }
  if constexpr (P::kFactor) {
    const auto factor = hn::Set(d, lanes.factor);
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::Mul(sum[r][v], factor);
      }
    }
  }
  if constexpr (P::kMaximum) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      auto maximum = load(d, lanes.maximum + v * N);
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        maximum = hn::Max(maximum, sum[r][v]);
      }
      store(maximum, d, lanes.maximum + v * N);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      store(sum[r][v], d, result + r * result_row + v * N);
    }
  }
}

/// Computes the rows from `r` on: kRows at a time, then 4, 2 and 1.
template <
    typename P,
    int kVectors,
    int kRows,
    bool kUnitStep,
    typename T,
    typename X>
HWY_INLINE void product_rows(
    int64_t r,
    int64_t rows,
    const Broadcast<T>& a,
    const X* x,
    int64_t x_row,
    int64_t n,
    T* result,
    int64_t result_row,
    const Lanes<T>& lanes,
    const NextRows& next = {}) {
  for (; r + kRows <= rows; r += kRows) {
    const Broadcast<T> part{a.data + r * a.row, a.row, a.step, a.ahead};
    product_in_registers<P, kVectors, kRows, kUnitStep>(
        part,
        x,
        x_row,
        n,
        result + r * result_row,
        result_row,
        lanes,
        next.part(r, r + kRows, rows));
  }
  if constexpr (kRows > 1) {
    // Few sizes, to compile fewer shapes.
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (r < rows) {
      product_rows<P, kVectors, kFewer, kUnitStep>(
          r, rows, a, x, x_row, n, result, result_row, lanes, next);
    }
  }
}

/// Sets scores[key][query] = sum over d of key[key][d] * query[d][query], for a
/// tile of kVectors vectors of queries. `head_dim` counts pairs if P does.
template <typename P, int kVectors, typename T>
HWY_NOINLINE void multiply_scores(
    const Broadcast<T>& key,
    int64_t num_keys,
    const T* query,
    int64_t query_row,
    int64_t head_dim,
    T* scores,
    const Lanes<T>& lanes) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  product_rows<P, kVectors, rows_for(kVectors), true>(
      0, num_keys, key, query, query_row, head_dim, scores, kWidth, lanes);
}

/// Adds to output[e][query] the sum over keys of value[key][e] *
/// weights[key][query]. `num_keys` counts pairs if P does.
template <typename P, int kVectors, typename T>
HWY_NOINLINE void multiply_output(
    const Broadcast<T>& value,
    int64_t value_dim,
    const T* weights,
    int64_t num_keys,
    T* output,
    int64_t output_row,
    const T* scale) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  product_rows<P, kVectors, rows_for(kVectors), false>(
      0,
      value_dim,
      value,
      weights,
      kWidth,
      num_keys,
      output,
      output_row,
      Lanes<T>{scale, nullptr});
}

/// Adds to gradient[key][d] the sum over i of weights[key][i] * x[i][d]. The
/// keys of `weights` are weight_row apart; head_dim, padded to vectors, is on
/// the lanes. Prefetches the first n rows of `next`.
template <typename P, typename T, typename X>
HWY_NOINLINE void multiply_features(
    const T* weights,
    int64_t weight_row,
    int64_t num_keys,
    const X* x,
    int64_t x_row,
    int64_t n,
    T* gradient,
    int64_t gradient_row,
    const NextRows& next = {}) {
  constexpr int N = kLanes<T>;
  const auto vectors = static_cast<int>(gradient_row / N);
  for (int v = 0; v < vectors; v += kMaxFeatureVectors) {
    with_constant<kMaxFeatureVectors>(
        HWY_MIN(kMaxFeatureVectors, vectors - v), [&](auto count) {
          constexpr int kVectors = decltype(count)::value;
          product_rows<P, kVectors, rows_for(kVectors), true>(
              0,
              num_keys,
              Broadcast<T>{weights, weight_row, 1},
              x + v * N,
              x_row,
              n,
              gradient + v * N,
              gradient_row,
              Lanes<T>{},
              next.part(v, v + kVectors, vectors));
        });
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
