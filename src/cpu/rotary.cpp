#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/rotary.h>
#include <cpu/tasks.h>
#include <cpu/workspace.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Rotates (x[i], x[i + pairs]) by the angle i.
template <typename X, typename T = Compute<X>>
HWY_INLINE void rotate_halves(
    const X* x,
    const T* cos,
    const T* sin,
    int64_t pairs,
    X* to) {
  for_lanes<T>(pairs, [&](int64_t i, auto d) {
    const auto first = load(d, x + i);
    const auto second = load(d, x + pairs + i);
    const auto c = load(d, cos + i);
    const auto s = load(d, sin + i);
    store(hn::Sub(hn::Mul(first, c), hn::Mul(second, s)), d, to + i);
    store(hn::Add(hn::Mul(second, c), hn::Mul(first, s)), d, to + pairs + i);
  });
}

/// Rotates (x[2 i], x[2 i + 1]) by the angle i: `cos` has each cosine twice,
/// `sin` each sine negated and as it is. `n`, the length of both, is even.
template <typename X, typename T = Compute<X>>
HWY_INLINE void rotate_neighbours(
    const X* x,
    const T* cos,
    const T* sin,
    int64_t n,
    X* to) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  int64_t i = 0;
  if constexpr (N > 1) {
    for (; i + N <= n; i += N) {
      const auto in = load(d, x + i);
      const auto others = hn::Reverse2(d, in);
      store(
          hn::Add(
              hn::Mul(in, load(d, cos + i)), hn::Mul(others, load(d, sin + i))),
          d,
          to + i);
    }
  }
  for (; i < n; i += 2) {
    const auto first = get(x + i);
    const auto second = get(x + i + 1);
    put(first * cos[i] + second * sin[i], to + i);
    put(second * cos[i + 1] + first * sin[i + 1], to + i + 1);
  }
}

template <typename X>
void rotate(const RotaryArguments<X>& a, const Threads& threads) {
  using T = Compute<X>;
  const auto dim = 2 * a.pairs;
  const auto rest = static_cast<size_t>(a.head_dim - dim) * sizeof(X);
  run_tasks_of_tokens(
      threads,
      a.batch_size,
      a.num_tokens,
      a.num_heads * a.head_dim,
      [&](int64_t b, int64_t t) {
        const auto row = b * a.table_batch + t * a.table_token;
        const auto* cos = a.cos + row;
        const auto* sin = a.sin + row;
        if (!a.by_halves) {
          auto* of_numbers = reinterpret_cast<T*>(
              thread_memory(static_cast<size_t>(2 * dim) * sizeof(T)));
          for (int64_t p = 0; p < a.pairs; ++p) {
            of_numbers[2 * p] = of_numbers[2 * p + 1] = cos[p];
            of_numbers[dim + 2 * p] = -sin[p];
            of_numbers[dim + 2 * p + 1] = sin[p];
          }
          cos = of_numbers;
          sin = of_numbers + dim;
        }
        for (int64_t h = 0; h < a.num_heads; ++h) {
          const auto* x = at(a.x, b, h) + t * a.x.strides.token;
          auto* to = at(a.output, b, h) + t * a.output.strides.token;
          if (a.by_halves) {
            rotate_halves(x, cos, sin, a.pairs, to);
          } else {
            rotate_neighbours(x, cos, sin, dim, to);
          }
          std::memcpy(to + dim, x + dim, rest);
        }
      });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void rotate(const RotaryArguments<X>& arguments, const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(rotate(arguments, threads));
}

template void rotate(const RotaryArguments<float>&, const Threads&);
template void rotate(const RotaryArguments<double>&, const Threads&);
template void rotate(const RotaryArguments<BFloat16>&, const Threads&);
template void rotate(const RotaryArguments<Float16>&, const Threads&);

} // namespace torch_attention::cpu

#endif // HWY_ONCE
