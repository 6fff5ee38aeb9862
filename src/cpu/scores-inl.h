// What happens to a tile of scores between the products: S[key][query], `width`
// queries in a row.

#if defined(TORCH_ATTENTION_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_SCORES_INL_H_
#undef TORCH_ATTENTION_CPU_SCORES_INL_H_
#else
#define TORCH_ATTENTION_CPU_SCORES_INL_H_
#endif

#include <cpu/packing-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/visibility.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Keys in a tile of scores.
constexpr int64_t kKeyBlock = 64;

/// What bias and mask add to a tile, -inf where they hide.
template <typename T>
struct Added {
  /// (keys, width), or (keys) for all queries alike; null: nothing
  const T* data = nullptr;
  bool per_query = false;
  bool hides_all = false;

  template <int kVectors>
  HWY_INLINE Vector<T> at(int64_t key, int vector) const {
    const Tag<T> d;
    return per_query ? load(d, data + (key * kVectors + vector) * kLanes<T>)
                     : hn::Set(d, data[key]);
  }
};

/// One row of bias and mask. Returns how many keys are hidden.
template <typename X, typename T = Compute<X>>
int64_t fill_added_row(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t t,
    int64_t s,
    int64_t n,
    T* row) {
  const auto copy = [&](const auto& bias, const auto* of_head) {
    const auto* from = of_head + t * bias.query + s * bias.key;
    for (int64_t i = 0; i < n; ++i) {
      row[i] = get(from + i * bias.key);
    }
  };
  if (head.bias != nullptr) {
    copy(a.bias, head.bias);
  } else if (head.wide_bias != nullptr) {
    copy(a.wide_bias, head.wide_bias);
  } else {
    std::fill(row, row + n, T(0));
  }
  int64_t hidden = 0;
  if (head.mask != nullptr) {
    const bool* mask = head.mask + t * a.mask.query + s * a.mask.key;
    for (int64_t i = 0; i < n; ++i) {
      const bool hides = mask[i * a.mask.key];
      row[i] = hides ? -kInfinity<T> : row[i];
      hidden += hides ? 1 : 0;
    }
  }
  return hidden;
}

/// For queries [t, t + rows) and keys [s, s + n). `rows_memory` holds
/// (width, kKeyBlock), `tile_memory` (kKeyBlock, width).
template <typename X, typename T = Compute<X>>
Added<T> added_to_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t t,
    int64_t rows,
    int64_t s,
    int64_t n,
    int64_t width,
    T* rows_memory,
    T* tile_memory) {
  Added<T> added;
  if (!adds_to_scores(a)) {
    return added;
  }
  // Where there is none, the distance of its rows is 0.
  added.per_query =
      a.bias.query != 0 || a.wide_bias.query != 0 || a.mask.query != 0;
  const auto different_rows = added.per_query ? rows : 1;
  int64_t hidden = 0;
  for (int64_t r = 0; r < different_rows; ++r) {
    hidden += fill_added_row(a, head, t + r, s, n, rows_memory + r * kKeyBlock);
  }
  added.hides_all = hidden == different_rows * n;
  if (added.hides_all ||
      (hidden == 0 && head.bias == nullptr && head.wide_bias == nullptr)) {
    return added;
  }
  added.data = rows_memory;
  if (added.per_query) {
    pack_transposed(rows_memory, kKeyBlock, rows, n, T(1), tile_memory, width);
    added.data = tile_memory;
  }
  return added;
}

/// Whether scores change even where nothing is hidden.
template <typename X>
bool shapes_scores(const AttentionArguments<X>& a) {
  return a.softcap > 0 || a.alibi_slopes != nullptr;
}

/// x[i] becomes softcap * tanh(x[i] / softcap) for i < n, and the rest of the
/// last vector anything. `derivative` takes in the derivatives, unless it is
/// null.
template <typename T>
HWY_NOINLINE void cap_scores(double softcap, int64_t n, T* x, T* derivative) {
  const Tag<T> d;
  const auto cap = hn::Set(d, static_cast<T>(softcap));
  const auto inverse = hn::Set(d, static_cast<T>(1 / softcap));
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const auto y = tanh<T>(hn::Mul(load(d, x + i), inverse));
    store(hn::Mul(y, cap), d, x + i);
    if (derivative != nullptr) {
      store(hn::NegMulAdd(y, y, hn::Set(d, T(1))), d, derivative + i);
    }
  }
}

/// The gradients of capped scores become those of the scores. Where they are 0
/// the score may have been hidden, and the derivative be NaN.
template <typename T>
HWY_NOINLINE void uncap_gradients(const T* derivative, int64_t n, T* x) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const auto grad = load(d, x + i);
    store(
        hn::IfThenZeroElse(
            hn::Eq(grad, hn::Zero(d)), hn::Mul(grad, load(d, derivative + i))),
        d,
        x + i);
  }
}

/// x[i] becomes 0 for i < n, but NaN stays, and infinity becomes NaN.
template <typename T>
HWY_INLINE void scale_by_0(int64_t n, T* x) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    store(hn::Mul(load(d, x + i), hn::Zero(d)), d, x + i);
  }
}

/// The positions of the queries from t on, one for each lane, counted from key
/// s. Exact below 2^24, and beyond it as a float is.
template <typename T>
HWY_INLINE Vector<T> positions(
    const Visibility& visibility,
    int64_t t,
    int64_t s) {
  const Tag<T> d;
  const auto first = static_cast<T>(visibility.offset + t - s);
  return hn::Add(hn::Set(d, first), hn::Iota(d, T(0)));
}

/// Scores of what is hidden become -inf, whatever they were; the others get
/// what distance and bias add. If `maximum` is not null it takes in the
/// results.
template <int kVectors, typename T>
HWY_NOINLINE void hide_scores(
    const Visibility& visibility,
    T alibi_slope,
    int64_t t,
    int64_t s,
    int64_t n,
    const Added<T>& added,
    T* scores,
    T* maximum) {
  using Int = hn::TFromD<IntTag<T>>;
  const Tag<T> d;
  const IntTag<T> di;
  constexpr int N = kLanes<T>;
  // Counted from key s on, and no farther than the lanes can tell apart, the
  // narrow ones too.
  const auto place = [&](int64_t position) {
    constexpr int64_t kFar = 1 << 20;
    return hn::Iota(
        di, static_cast<Int>(std::clamp(position - s, -kFar, kFar)));
  };
  const auto hidden = hn::Set(d, -kInfinity<T>);
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto first = place(visibility.lower + t + v * N);
    const auto end = place(visibility.upper + t + v * N);
    const auto position = positions<T>(visibility, t + v * N, s);
    auto highest = maximum != nullptr ? load(d, maximum + v * N) : hn::Zero(d);
    auto key = hn::Zero(di);
    for (int64_t i = 0; i < n; ++i) {
      auto* at = scores + (i * kVectors + v) * N;
      auto score = load(d, at);
      if (alibi_slope != 0) {
        const auto distance = hn::Sub(position, hn::ConvertTo(d, key));
        score =
            hn::NegMulAdd(hn::Set(d, alibi_slope), hn::Abs(distance), score);
      }
      if (added.data != nullptr) {
        const auto x = added.template at<kVectors>(i, v);
        score = hn::IfThenElse(hn::Eq(x, hidden), hidden, hn::Add(score, x));
      }
      const auto seen = hn::And(hn::Gt(end, key), hn::Not(hn::Gt(first, key)));
      score = hn::IfThenElse(hn::RebindMask(d, seen), score, hidden);
      key = hn::Add(key, hn::Set(di, Int(1)));
      highest = hn::Max(highest, score);
      store(score, d, at);
    }
    if (maximum != nullptr) {
      store(highest, d, maximum + v * N);
    }
  }
}

/// sums[query] += sum over the keys of grad_scores[key][query] * distance.
template <int kVectors, typename T>
HWY_NOINLINE void add_distances(
    const Visibility& visibility,
    int64_t t,
    int64_t s,
    int64_t n,
    const T* grad_scores,
    T* sums) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  for (int v = 0; v < kVectors; ++v) {
    const auto position = positions<T>(visibility, t + v * N, s);
    auto sum = load(d, sums + v * N);
    for (int64_t i = 0; i < n; ++i) {
      const auto key = hn::Set(d, static_cast<T>(i));
      const auto distance = hn::Abs(hn::Sub(position, key));
      const auto grad = load(d, grad_scores + (i * kVectors + v) * N);
      sum = hn::MulAdd(grad, distance, sum);
    }
    store(sum, d, sums + v * N);
  }
}

/// exp(score - shift), and exactly 0 for what `hide_scores` hid; for what is
/// seen never, so that NaN in its value is not taken for hidden.
template <bool kCut, typename T>
HWY_INLINE Vector<T> weight_of(Vector<T> score, Vector<T> shift) {
  const auto weight = exp<false, T>(hn::Sub(score, shift));
  if constexpr (kCut) {
    const auto hidden = hn::Set(Tag<T>(), -kInfinity<T>);
    return hn::IfThenZeroElse(hn::Eq(score, hidden), weight);
  }
  return weight;
}

/// Which weights are dropped.
struct Dropout {
  /// of 65536 equally likely 16-bit numbers, how many drop; 0: no dropout
  uint32_t threshold = 0;
  uint64_t seed = 0;

  /// The factor that keeps the mean.
  double scale() const {
    return threshold < 65536 ? 65536.0 / (65536 - threshold) : 0.0;
  }
};

template <typename X>
Dropout dropout_of(const AttentionArguments<X>& a) {
  return {static_cast<uint32_t>(a.dropout * 65536 + 0.5), a.dropout_seed};
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
