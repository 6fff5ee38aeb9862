#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/linear.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/tasks.h>
#include <cpu/workspace.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Numbers [begin, end) of the output of all rows. `input` (rows, in) is in the
/// type that is computed with.
template <typename X, typename T = Compute<X>>
HWY_NOINLINE void multiply_weight(
    const Linear<X>& layer,
    const T* input,
    int64_t begin,
    int64_t end) {
  constexpr int64_t N = kLanes<T>;
  // As far as four rows of the weight are asked for before they are read.
  constexpr int64_t kAhead = 1024 / sizeof(X);
  const auto in = layer.in;
  const auto whole = in / N * N;
  for (auto o = begin; o < end; o += 4) {
    // The last four may begin among those before them, which are left alone.
    const auto first = std::max<int64_t>(0, std::min(o, layer.out - 4));
    const auto* weight = layer.weight + first * in;
    for (int64_t r = 0; r < layer.rows;) {
      const auto left = std::min<int64_t>(layer.rows - r, kMaxRowsAtOnce);
      HWY_ALIGN T sums[kMaxRowsAtOnce * 4];
      const auto* x = input + r * in;
      with_constant<kMaxRowsAtOnce>(static_cast<int>(left), [&](auto count) {
        multiply_four_rows<decltype(count)::value>(
            x,
            in,
            weight,
            in,
            whole,
            [&](int64_t i) {
              for (int64_t j = 0; j < 4; ++j) {
                hwy::Prefetch(weight + j * in + i + kAhead);
              }
            },
            sums,
            4);
      });
      for (int64_t k = 0; k < left; ++k) {
        for (int64_t j = o - first; j < 4; ++j) {
          auto sum = sums[k * 4 + j];
          for (auto i = whole; i < in; ++i) {
            sum += x[k * in + i] * get(weight + j * in + i);
          }
          if (layer.bias != nullptr) {
            sum += get(layer.bias + first + j);
          }
          put(sum, layer.output + (r + k) * layer.out + first + j);
        }
      }
      r += left;
    }
  }
}

/// reads input (rows, in), weight (out, in), bias (out); writes output (rows,
/// out).
template <typename X>
void linear(const Linear<X>& layer, const Threads& threads) {
  using T = Compute<X>;
  // Enough of the weight that to wake a thread for it pays.
  constexpr int64_t kTaskNumbers = 64 * 1024;
  const auto input = allocate(
      static_cast<size_t>(layer.rows * layer.in + kLanes<T>) * sizeof(T));
  auto* wide = reinterpret_cast<T*>(input.get());
  store_each<T>(wide, layer.rows * layer.in, [&](int64_t i, auto d) {
    return load(d, layer.input + i);
  });
  const auto per_task = std::max<int64_t>(4, kTaskNumbers / layer.in / 4 * 4);
  run_tasks(threads, (layer.out + per_task - 1) / per_task, [&](int64_t i) {
    const auto begin = i * per_task;
    multiply_weight(layer, wide, begin, std::min(begin + per_task, layer.out));
  });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void linear(const Linear<X>& layer, const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(linear(layer, threads));
}

template void linear(const Linear<float>&, const Threads&);
template void linear(const Linear<BFloat16>&, const Threads&);
template void linear(const Linear<Float16>&, const Threads&);

} // namespace torch_attention::cpu

#endif // HWY_ONCE
