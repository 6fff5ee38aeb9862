#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/rms_norm.h>
#include <cpu/tasks.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

template <typename X, typename T = Compute<X>>
HWY_INLINE T sum_of_squares(const X* x, int64_t n) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    const auto first = load(d, x + i);
    const auto second = load(d, x + i + N);
    even = hn::MulAdd(first, first, even);
    odd = hn::MulAdd(second, second, odd);
  }
  for (; i + N <= n; i += N) {
    const auto last = load(d, x + i);
    even = hn::MulAdd(last, last, even);
  }
  auto sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; ++i) {
    sum += get(x + i) * get(x + i);
  }
  return sum;
}

template <typename X>
void rms_norm(const RmsNormArguments<X>& a, const Threads& threads) {
  using T = Compute<X>;
  run_tasks_of_tokens(
      threads,
      a.batch_size,
      a.num_tokens,
      a.num_heads * a.head_dim,
      [&](int64_t b, int64_t t) {
        for (int64_t h = 0; h < a.num_heads; ++h) {
          const auto* x = at(a.x, b, h) + t * a.x.strides.token;
          auto* to = at(a.output, b, h) + t * a.output.strides.token;
          const auto mean =
              sum_of_squares(x, a.head_dim) / static_cast<T>(a.head_dim);
          const auto factor = 1 / std::sqrt(mean + static_cast<T>(a.eps));
          store_each<T>(to, a.head_dim, [&](int64_t c, auto d) {
            auto y = hn::Mul(load(d, x + c), hn::Set(d, factor));
            if (a.weight != nullptr) {
              const auto offset = hn::Set(d, static_cast<T>(a.offset));
              const auto weight = load(d, a.weight + h * a.head + c);
              y = hn::Mul(y, hn::Add(weight, offset));
            }
            if (a.bias != nullptr) {
              y = hn::Add(y, load(d, a.bias + h * a.head + c));
            }
            return y;
          });
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
void rms_norm(const RmsNormArguments<X>& arguments, const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(rms_norm(arguments, threads));
}

template void rms_norm(const RmsNormArguments<float>&, const Threads&);
template void rms_norm(const RmsNormArguments<double>&, const Threads&);
template void rms_norm(const RmsNormArguments<BFloat16>&, const Threads&);
template void rms_norm(const RmsNormArguments<Float16>&, const Threads&);

} // namespace torch_attention::cpu

#endif // HWY_ONCE
