// Turns scores into weights and their gradients, in the backward pass by the
// tiles of AMX.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_AMX_WEIGHTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_AMX_WEIGHTS_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_AMX_WEIGHTS_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_AMX_WEIGHTS_INL_H_
#endif

#include <cpu/amx-inl.h>
#include <cpu/backward_memory-inl.h>
#include <cpu/math-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/vector-inl.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// Weights and the gradients of scores of a tile of queries, as the products
/// read them. A row has kWideQueries.
struct TileGradients {
  BFloat16* weights; // (keys, width)
  BFloat16* grad_scores; // (keys, width)
  float* grad_score_pairs; // (keys / 2, width)

  /// Returns the part of the queries from `column` on.
  TileGradients from(int64_t column) const {
    return {weights + column, grad_scores + column, grad_score_pairs + column};
  }
};

/// Stores a row of weights and a row of gradients of each of keys i and i + 1,
/// and pairs of the gradients.
template <int kVectors>
HWY_INLINE void store_two_keys(
    const Vector<float> (&weight)[2][kVectors],
    const Vector<float> (&grad)[2][kVectors],
    int64_t i,
    const TileGradients& to) {
  static_assert(kVectors == 2, "32 queries are a step of the products");
  const Tag<float> d;
  for (int j = 0; j < 2; ++j) {
    const auto row = (i + j) * kWideQueries;
    store_halves(weight[j][0], weight[j][1], to.weights + row);
    store_halves(grad[j][0], grad[j][1], to.grad_scores + row);
  }
  for (int v = 0; v < kVectors; ++v) {
    store(
        pairs_of(grad[0][v], grad[1][v]),
        d,
        to.grad_score_pairs + i / 2 * kWideQueries + v * kLanes<float>);
  }
}

/// Computes `differentiate_weights` from raw products of query and key, and of
/// gradients and values: scale, exponential, and all roundings at once.
/// kNanSafe: hidden keys stay 0 where all else is NaN.
template <int kVectors, bool kNanSafe, typename T>
HWY_NOINLINE void differentiate_raw(
    int64_t n,
    T scale,
    const BackwardMemory<T>& m,
    const TileGradients& to) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  constexpr auto kLog2e = T(1.4426950408889634074);
  const auto log2e = hn::Set(d, scale * kLog2e);
  Vector<T> shift[kVectors];
  Vector<T> factor[kVectors];
  Vector<T> mean[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = hn::Mul(load(d, m.maximum + v * N), hn::Set(d, kLog2e));
    factor[v] = load(d, m.inverse_sum + v * N);
    mean[v] = load(d, m.delta + v * N);
  }
  Vector<T> weight[2][kVectors];
  Vector<T> grad[2][kVectors];
  for (int64_t i = 0; i < n; i += 2) {
    HWY_UNROLL(2)
    for (int j = 0; j < 2; ++j) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        if (i + j >= n) {
          weight[j][v] = hn::Zero(d);
          grad[j][v] = hn::Zero(d);
          continue;
        }
        const auto at = ((i + j) * kVectors + v) * N;
        const auto score = load(d, m.scores + at);
        weight[j][v] = hn::Mul(
            exp2_to_18_bits(hn::MulSub(score, log2e, shift[v])), factor[v]);
        grad[j][v] = hn::Mul(
            weight[j][v], hn::Sub(load(d, m.grad_scores + at), mean[v]));
        if constexpr (kNanSafe) {
          const auto hidden = hn::Eq(score, hn::Set(d, -kInfinity<T>));
          weight[j][v] = hn::IfThenZeroElse(hidden, weight[j][v]);
          grad[j][v] = hn::IfThenZeroElse(hidden, grad[j][v]);
        }
      }
    }
    store_two_keys<kVectors>(weight, grad, i, to);
  }
}

/// Rounds the weights and gradients in `m`.
template <int kVectors, typename T>
HWY_NOINLINE void round_gradients(
    int64_t n,
    const BackwardMemory<T>& m,
    const TileGradients& to) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  Vector<T> weight[2][kVectors];
  Vector<T> grad[2][kVectors];
  for (int64_t i = 0; i < n; i += 2) {
    HWY_UNROLL(2)
    for (int j = 0; j < 2; ++j) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const auto at = ((i + j) * kVectors + v) * N;
        const bool is = i + j < n;
        weight[j][v] = is ? load(d, m.scores + at) : hn::Zero(d);
        grad[j][v] = is ? load(d, m.grad_scores + at) : hn::Zero(d);
      }
    }
    store_two_keys<kVectors>(weight, grad, i, to);
  }
}

/// Sets the keys [n, end) of a tile of queries, and its padding queries, to 0.
/// `end` is even.
template <typename T>
void clear_beside(
    int64_t n,
    int64_t end,
    int64_t rows,
    const TileGradients& to) {
  constexpr int64_t W = kMaxTileQueries<T>;
  const auto clear = [](auto* x, int64_t count) {
    std::memset(x, 0, static_cast<size_t>(count) * sizeof(*x));
  };
  for (int64_t i = 0; i < end; ++i) {
    const auto row = i * kWideQueries;
    const auto column = i < n ? rows : 0;
    if (column < W) {
      clear(to.weights + row + column, W - column);
      clear(to.grad_scores + row + column, W - column);
    }
  }
  // `store_two_keys` has filled up the pair of the last key.
  for (auto i = num_pairs(n); i < end / 2; ++i) {
    clear(to.grad_score_pairs + i * kWideQueries, W);
  }
}

#endif // HWY_TARGET == HWY_AVX3

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
