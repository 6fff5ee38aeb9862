// Turns scores into weights, in the forward pass.

#if defined(TORCH_ATTENTION_CPU_FORWARD_WEIGHTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_WEIGHTS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_WEIGHTS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_WEIGHTS_INL_H_
#endif

#include <cpu/dropout-inl.h>
#include <cpu/forward_memory-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Scales the sum of earlier keys' weights to the maximum of the tile, which
/// was `memory.previous`. Sets `memory.scale` to the factor for earlier sums.
template <int kVectors, typename T>
HWY_NOINLINE void scale_sums(
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto shift = shift_of<T>(load(d, tile.maximum + v * N));
    const auto factor =
        exp<true, T>(hn::Sub(load(d, memory.previous + v * N), shift));
    store(factor, d, memory.scale + v * N);
    auto* sum = tile.sum + v * N;
    const auto scaled =
        tile.started ? hn::Mul(factor, load(d, sum)) : hn::Zero(d);
    store(scaled, d, sum);
  }
}

/// Turns scores into weights exp(score - maximum), 0 where dropped. The sum
/// grows by all of them. kPairs: the weights of two keys become pairs.
template <int kVectors, bool kCut, bool kDropout, bool kPairs, typename T>
HWY_NOINLINE void weigh_scores(
    const QueryTile<T>& tile,
    const Range& range,
    int64_t head,
    const Dropout& dropout) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto s = range.s;
  const auto n = range.n;
  auto* scores = tile.scores;
  Vector<T> shift[kVectors];
  Vector<T> sum[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = shift_of<T>(load(d, tile.maximum + v * N));
    sum[v] = load(d, tile.sum + v * N);
  }
  const auto weigh = [&](int64_t i, int v) {
    if (i >= n) {
      return hn::Zero(d);
    }
    const auto weight =
        weight_of<kCut, T>(load(d, scores + (i * kVectors + v) * N), shift[v]);
    sum[v] = hn::Add(sum[v], weight);
    return weight;
  };
  const auto put_weight = [&](Vector<T> weight, int64_t row, int v) {
    store(weight, d, scores + (row * kVectors + v) * N);
  };
  // A pair overwrites scores that have been read.
  if constexpr (kDropout) {
    for (int64_t i = 0; i < n; i += 4) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const Philox<T> philox(dropout, tile.first + v * N, s + i, head);
        const auto keep = [&](auto key) {
          constexpr int kKey = decltype(key)::value;
          return philox.template keep<kKey>(
              weigh(i + kKey, v), dropout.threshold);
        };
        const auto weight0 = keep(std::integral_constant<int, 0>());
        const auto weight1 = keep(std::integral_constant<int, 1>());
        const auto weight2 = keep(std::integral_constant<int, 2>());
        const auto weight3 = keep(std::integral_constant<int, 3>());
        if constexpr (kPairs) {
          put_weight(pairs_of(weight0, weight1), i / 2, v);
          put_weight(pairs_of(weight2, weight3), i / 2 + 1, v);
        } else {
          // There is room for four.
          put_weight(weight0, i, v);
          put_weight(weight1, i + 1, v);
          put_weight(weight2, i + 2, v);
          put_weight(weight3, i + 3, v);
        }
      }
    }
  } else if constexpr (kPairs) {
    for (int64_t i = 0; i < n; i += 2) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const auto first = weigh(i, v);
        put_weight(pairs_of(first, weigh(i + 1, v)), i / 2, v);
      }
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        put_weight(weigh(i, v), i, v);
      }
    }
  }
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    store(sum[v], d, tile.sum + v * N);
  }
}

/// Turns scores into weights, by the instance of `weigh_scores` that fits.
template <int kVectors, bool kPairs, typename X, typename T>
void weigh(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool cut,
    const QueryTile<T>& tile) {
  const auto dropout = dropout_of(a);
  const auto weigh = dropout.threshold > 0
      ? (cut ? weigh_scores<kVectors, true, true, kPairs, T>
             : weigh_scores<kVectors, false, true, kPairs, T>)
      : (cut ? weigh_scores<kVectors, true, false, kPairs, T>
             : weigh_scores<kVectors, false, false, kPairs, T>);
  weigh(tile, range, head.dropout_index, dropout);
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
