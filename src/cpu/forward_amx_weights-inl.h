// Turns scores into weights, in the forward pass by the tiles of AMX.

#if defined(TORCH_ATTENTION_CPU_FORWARD_AMX_WEIGHTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_AMX_WEIGHTS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_AMX_WEIGHTS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_AMX_WEIGHTS_INL_H_
#endif

#include <cpu/forward_memory-inl.h>
#include <cpu/math-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/vector-inl.h>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// Raises highest[query] to the largest score[key][query] of n keys, times
/// `factor`, if that is larger.
template <int kVectors, typename T>
HWY_NOINLINE void take_maximum(
    const T* scores,
    int64_t n,
    T factor,
    T* highest) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  constexpr int kChains = 4;
  for (int v = 0; v < kVectors; ++v) {
    const auto at = [&](int64_t i) {
      return load(d, scores + (i * kVectors + v) * N);
    };
    Vector<T> most[kChains];
    HWY_UNROLL(4)
    for (auto& x : most) {
      x = hn::Set(d, -kInfinity<T>);
    }
    int64_t i = 0;
    for (; i + kChains <= n; i += kChains) {
      HWY_UNROLL(4)
      for (int j = 0; j < kChains; ++j) {
        most[j] = hn::Max(most[j], at(i + j));
      }
    }
    for (; i < n; ++i) {
      most[0] = hn::Max(most[0], at(i));
    }
    const auto all =
        hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
    const auto scaled = hn::Mul(all, hn::Set(d, factor));
    store(hn::Max(scaled, load(d, highest + v * N)), d, highest + v * N);
  }
}

/// Raises `tile.maximum` to `memory.highest`, the largest scores of a block of
/// keys, if one is much larger. Weights relative to a lower maximum overflow
/// only beyond e^88, and rare raises save scaling the output. Returns whether
/// the output has to be scaled, by `memory.scale`.
template <int kVectors, typename T>
HWY_INLINE bool raise_maximum(
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto margin = hn::Set(d, T(5));
  bool raised = false;
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto limit = hn::Add(load(d, tile.maximum + v * N), margin);
    raised |= !hn::AllFalse(d, hn::Gt(load(d, memory.highest + v * N), limit));
  }
  if (!raised) {
    return false;
  }
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto before = load(d, tile.maximum + v * N);
    const auto highest = load(d, memory.highest + v * N);
    // Each query by itself, so that none depends on others.
    const auto after = hn::IfThenElse(
        hn::Gt(highest, hn::Add(before, margin)), highest, before);
    const auto shift = shift_of<T>(after);
    store(after, d, tile.maximum + v * N);
    store(exp<true, T>(hn::Sub(before, shift)), d, memory.scale + v * N);
  }
  return true;
}

/// Turns scores, times `factor` if they are raw, into weights exp(score -
/// maximum) as pairs of keys, and adds them to the sum.
template <int kVectors, bool kRaw, typename T>
HWY_NOINLINE void weigh_for_tiles(
    const QueryTile<T>& tile,
    int64_t n,
    T factor,
    bool raised,
    const ForwardMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  constexpr auto kLog2e = T(1.4426950408889634074);
  const auto log2e = hn::Set(d, kRaw ? factor * kLog2e : kLog2e);
  auto* scores = memory.scores;
  Vector<T> shift[kVectors];
  Vector<T> sum[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = shift_of<T>(load(d, tile.maximum + v * N));
    if constexpr (kRaw) {
      shift[v] = hn::Mul(shift[v], hn::Set(d, kLog2e));
    }
    sum[v] = tile.started ? load(d, tile.sum + v * N) : hn::Zero(d);
    if (tile.started && raised) {
      sum[v] = hn::Mul(sum[v], load(d, memory.scale + v * N));
    }
  }
  const auto weigh = [&](int64_t i, int v) {
    const auto score = load(d, scores + (i * kVectors + v) * N);
    // Scores with a bias may be near the largest number, where their product
    // with log2e overflows: multiplies the difference.
    const auto weight = exp2_to_18_bits(
        kRaw ? hn::MulSub(score, log2e, shift[v])
             : hn::Mul(hn::Sub(score, shift[v]), log2e));
    sum[v] = hn::Add(sum[v], weight);
    return weight;
  };
  // A pair overwrites scores that have been read.
  const auto put_pair =
      [&](Vector<T> first, Vector<T> second, int64_t i, int v) {
        store(pairs_of(first, second), d, scores + (i / 2 * kVectors + v) * N);
      };
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    HWY_UNROLL(3)
    for (int v = 0; v < kVectors; ++v) {
      const auto first = weigh(i, v);
      put_pair(first, weigh(i + 1, v), i, v);
    }
  }
  if (i < n) {
    HWY_UNROLL(3)
    for (int v = 0; v < kVectors; ++v) {
      put_pair(weigh(i, v), hn::Zero(d), i, v);
    }
  }
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    store(sum[v], d, tile.sum + v * N);
  }
}

/// x[i][lane] *= scale[lane] for n rows.
template <int kVectors, typename T>
HWY_NOINLINE void scale_lanes(const T* scale, int64_t n, T* x) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  Vector<T> factor[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    factor[v] = load(d, scale + v * N);
  }
  for (int64_t i = 0; i < n; ++i) {
    HWY_UNROLL(3)
    for (int v = 0; v < kVectors; ++v) {
      auto* at = x + (i * kVectors + v) * N;
      store(hn::Mul(load(d, at), factor[v]), d, at);
    }
  }
}

#endif // HWY_TARGET == HWY_AVX3

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
