// Turns products of queries and keys into scores by a `ScoreRule`, and computes
// the gradients. A tile is S[key][query], `width` queries in a row; a row has
// one query, and its keys on the lanes. In this order:
//
//   1. transform_scores: softcap          (backward: multiply_by_derivative)
//   2. place_scores, place_row: biases    (backward: add_distances)
//      by position and tensor, hidden keys
//   3. weight_of

#if defined(TORCH_ATTENTION_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_SCORES_INL_H_
#undef TORCH_ATTENTION_CPU_SCORES_INL_H_
#else
#define TORCH_ATTENTION_CPU_SCORES_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Sets x[i] = softcap * tanh(x[i] / softcap) for i < n, and the rest of the
/// last vector to anything. Writes the derivatives to `derivative`, unless it
/// is null.
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

/// Applies the softcap to n scores, where the rule has one; the rest of the
/// last vector becomes anything. Writes the derivatives to `derivative`, unless
/// it is null.
template <typename T>
HWY_INLINE void transform_scores(
    const HeadRule<T>& rule,
    int64_t n,
    T* scores,
    T* derivative) {
  if (rule.softcap > 0) {
    cap_scores(rule.softcap, n, scores, derivative);
  }
}

/// Propagates gradients of scores back through the softcap. Keeps a gradient of
/// 0, which may belong to a hidden score, whose derivative may be NaN.
template <typename T>
HWY_NOINLINE void multiply_by_derivative(const T* derivative, int64_t n, T* x) {
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

/// Sets x[i] to 0 for i < n, but keeps NaN, and turns infinity into NaN.
template <typename T>
HWY_INLINE void scale_by_0(int64_t n, T* x) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    store(hn::Mul(load(d, x + i), hn::Zero(d)), d, x + i);
  }
}

/// The positions of a vector of scores: one query or one key for each lane. All
/// are counted from the first key of the block on.
template <typename T>
struct Place {
  using Ints = hn::VFromD<IntTag<T>>;

  /// of the queries; exact below 2^24, and beyond it as a float is
  Vector<T> position;
  /// ALiBi slopes of their heads
  Vector<T> slope;
  /// the keys that the queries see: [first, end)
  Ints first;
  Ints end;
};

/// Returns `key` counted from s on, clamped to the range of the narrowest
/// lanes.
template <typename T>
HWY_INLINE hn::TFromD<IntTag<T>> near(int64_t key, int64_t s) {
  constexpr int64_t kFar = 1 << 20;
  return static_cast<hn::TFromD<IntTag<T>>>(std::clamp(key - s, -kFar, kFar));
}

/// Returns the vector with of(i) in each lane i.
template <typename T, typename Of>
HWY_INLINE hn::VFromD<hn::ScalableTag<T>> each_lane(const Of& of) {
  const hn::ScalableTag<T> d;
  HWY_ALIGN T x[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::MaxLanes(d); ++i) {
    x[i] = of(static_cast<int64_t>(i));
  }
  return hn::Load(d, x);
}

/// Returns the positions of rows t, t + 1, … on the lanes, for keys from s on.
template <typename T>
HWY_INLINE Place<T> place_of_queries(
    const HeadRule<T>& rule,
    const Visibility& visibility,
    int64_t t,
    int64_t s) {
  const Tag<T> d;
  const IntTag<T> di;
  using Int = hn::TFromD<IntTag<T>>;
  const auto query = visibility.query(t);
  const auto position = static_cast<T>(visibility.offset + query - s);
  Place<T> place{
      hn::Add(hn::Set(d, position), hn::Iota(d, T(0))),
      hn::Set(d, rule.alibi_slopes != nullptr ? *rule.alibi_slopes : T(0)),
      hn::Iota(di, near<T>(visibility.lower + query, s)),
      hn::Iota(di, near<T>(visibility.upper + query, s))};
  const auto heads = visibility.heads;
  if (heads > 1) {
    place.position = each_lane<T>([&](int64_t i) {
      return static_cast<T>(visibility.offset + visibility.query(t + i) - s);
    });
    if (rule.alibi_slopes != nullptr) {
      place.slope = each_lane<T>(
          [&](int64_t i) { return rule.alibi_slopes[(t + i) % heads]; });
    }
  }
  if (heads > 1 || visibility.chunk > 0) {
    place.first = each_lane<Int>(
        [&](int64_t i) { return near<T>(visibility.first(t + i), s); });
    place.end = each_lane<Int>(
        [&](int64_t i) { return near<T>(visibility.end(t + i), s); });
  }
  return place;
}

/// Returns the position of row range.t on all lanes, for the keys of `range`;
/// `rule` is of its head.
template <typename T>
HWY_INLINE Place<T> place_of_keys(
    const HeadRule<T>& rule,
    const Visibility& visibility,
    const Range& range) {
  const Tag<T> d;
  const IntTag<T> di;
  const auto query = visibility.query(range.t);
  const auto position = static_cast<T>(visibility.offset + query - range.s);
  const auto end = std::min(visibility.end(range.t), range.s_end());
  return {
      hn::Set(d, position),
      hn::Set(d, rule.alibi_slopes != nullptr ? *rule.alibi_slopes : T(0)),
      hn::Set(di, near<T>(visibility.first(range.t), range.s)),
      hn::Set(di, near<T>(end, range.s))};
}

/// Adds the ALiBi bias by the positions of queries and keys, then bias and
/// mask, to a vector of scores; -inf where a key is hidden, whatever the score.
/// Used for tiles and rows, forward and backward.
template <typename T, typename Load>
HWY_INLINE Vector<T> place_score(
    const HeadRule<T>& rule,
    const Place<T>& place,
    typename Place<T>::Ints key,
    bool has_added,
    const Load& load_added,
    Vector<T> score) {
  const Tag<T> d;
  const auto hidden = hn::Set(d, -kInfinity<T>);
  if (rule.alibi_slopes != nullptr) {
    const auto distance = hn::Sub(place.position, hn::ConvertTo(d, key));
    score = hn::NegMulAdd(place.slope, hn::Abs(distance), score);
  }
  if (has_added) {
    const auto x = load_added();
    score = hn::IfThenElse(hn::Eq(x, hidden), hidden, hn::Add(score, x));
  }
  const auto seen =
      hn::And(hn::Gt(place.end, key), hn::Not(hn::Gt(place.first, key)));
  return hn::IfThenElse(hn::RebindMask(d, seen), score, hidden);
}

/// Applies `place_score` to a tile of scores (range.n, width). Raises `maximum`
/// (width) to the results, unless it is null.
template <int kVectors, typename T>
HWY_NOINLINE void place_scores(
    const HeadRule<T>& head_rule,
    const Visibility& visibility,
    const Range& range,
    const Added<T>& added,
    T* scores,
    T* maximum) {
  // A copy, which stores to `scores` cannot change.
  const auto rule = head_rule;
  using Int = hn::TFromD<IntTag<T>>;
  const Tag<T> d;
  const IntTag<T> di;
  constexpr int N = kLanes<T>;
  const auto n = range.n;
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto place =
        place_of_queries<T>(rule, visibility, range.t + v * N, range.s);
    auto highest = maximum != nullptr ? load(d, maximum + v * N) : hn::Zero(d);
    auto key = hn::Zero(di);
    for (int64_t i = 0; i < n; ++i) {
      auto* at = scores + (i * kVectors + v) * N;
      const auto score = place_score<T>(
          rule,
          place,
          key,
          added.data != nullptr,
          [&] { return added.template at<kVectors>(i, v); },
          load(d, at));
      key = hn::Add(key, hn::Set(di, Int(1)));
      highest = hn::Max(highest, score);
      store(score, d, at);
    }
    if (maximum != nullptr) {
      store(highest, d, maximum + v * N);
    }
  }
}

/// Keys [s, s + n).
struct Keys {
  int64_t s;
  int64_t n;
};

/// Applies `place_scores`, where only positions hide keys, to the keys that
/// some query does not see. Returns the keys that all see, whose scores are not
/// in `maximum`.
template <int kVectors, typename T>
Keys place_cut_scores(
    const HeadRule<T>& rule,
    const Visibility& visibility,
    const Range& range,
    T* scores,
    T* maximum) {
  const auto place = [&](int64_t s, int64_t s_end) {
    if (s < s_end) {
      place_scores<kVectors>(
          rule,
          visibility,
          Range{range.t, range.rows, s, s_end - s},
          Added<T>(),
          scores + (s - range.s) * kVectors * kLanes<T>,
          maximum);
    }
  };
  const auto begin =
      std::clamp(visibility.first(range.t_end() - 1), range.s, range.s_end());
  const auto end = std::clamp(visibility.end(range.t), begin, range.s_end());
  place(range.s, begin);
  place(end, range.s_end());
  return {begin, end - begin};
}

/// Applies `place_score` to one row of kKeyBlock scores: to the keys of
/// `range`, and the rest is hidden. `added` is null or has bias and mask.
/// Returns the largest score of each lane, or `highest`.
template <typename T>
HWY_INLINE Vector<T> place_row(
    const HeadRule<T>& head_rule,
    const Visibility& visibility,
    const Range& range,
    const T* added,
    T* scores,
    Vector<T> highest) {
  const auto rule = head_rule;
  using Int = hn::TFromD<IntTag<T>>;
  const Tag<T> d;
  const IntTag<T> di;
  constexpr int N = kLanes<T>;
  const bool plain = !rule.adds && added == nullptr && range.n == kKeyBlock &&
      visibility.tile(range) == Tile::kFull;
  if (!plain) {
    const auto place = place_of_keys<T>(rule, visibility, range);
    for (int64_t i = 0; i < kKeyBlock; i += N) {
      const auto score = place_score<T>(
          rule,
          place,
          hn::Iota(di, static_cast<Int>(i)),
          added != nullptr,
          [&] { return load(d, added + i); },
          load(d, scores + i));
      store(score, d, scores + i);
    }
  }
  for (int64_t i = 0; i < kKeyBlock; i += N) {
    highest = hn::Max(highest, load(d, scores + i));
  }
  return highest;
}

/// Adds to sums[query] the sum over keys of grad_scores[key][query] * distance.
/// `adds_up_to_0`: the gradients of each query's scores add up to 0, except for
/// rounding. The distance of the nearest key is then subtracted from all, lest
/// large distances multiply the rounding.
template <int kVectors, typename T>
HWY_NOINLINE void add_distances(
    const HeadRule<T>& rule,
    const Visibility& visibility,
    const Range& range,
    bool adds_up_to_0,
    const T* grad_scores,
    T* sums) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto first_key = hn::Set(d, static_cast<T>(-range.s));
  const auto last_key =
      hn::Set(d, static_cast<T>(visibility.num_keys - 1 - range.s));
  for (int v = 0; v < kVectors; ++v) {
    const auto position =
        place_of_queries<T>(rule, visibility, range.t + v * N, range.s)
            .position;
    const auto beside =
        hn::Max(hn::Sub(first_key, position), hn::Sub(position, last_key));
    const auto nearest =
        adds_up_to_0 ? hn::Max(beside, hn::Zero(d)) : hn::Zero(d);
    auto sum = load(d, sums + v * N);
    for (int64_t i = 0; i < range.n; ++i) {
      const auto key = hn::Set(d, static_cast<T>(i));
      const auto distance = hn::Sub(hn::Abs(hn::Sub(position, key)), nearest);
      const auto grad = load(d, grad_scores + (i * kVectors + v) * N);
      sum = hn::MulAdd(grad, distance, sum);
    }
    store(sum, d, sums + v * N);
  }
}

/// Returns exp(score - shift): exactly 0 for keys that `place_score` hid, and
/// never 0 for others, so that NaN in their values is not taken for hidden.
template <bool kCut, typename T>
HWY_INLINE Vector<T> weight_of(Vector<T> score, Vector<T> shift) {
  const auto weight = exp<false, T>(hn::Sub(score, shift));
  if constexpr (kCut) {
    const auto hidden = hn::Set(Tag<T>(), -kInfinity<T>);
    return hn::IfThenZeroElse(hn::Eq(score, hidden), weight);
  }
  return weight;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
