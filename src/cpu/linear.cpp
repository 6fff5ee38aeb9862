#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/linear.h>
#include <cpu/linear_in_order-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/tasks.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The operands of a product as it is computed: rows of x and of the weight in
/// steps of `size` numbers.
template <typename X, typename T = Compute<X>>
struct ByNumbers {
  static constexpr int64_t size = 1;

  const T* x; // (rows, in)
  const X* weight; // (out, in)

  template <typename V>
  static HWY_INLINE V add_product(V a, V b, V sum) {
    return hn::MulAdd(a, b, sum);
  }
  T number(int64_t i) const {
    return x[i];
  }
};

/// Operands as pairs of bfloat16, each stored as a float.
struct ByPairs {
  static constexpr int64_t size = 2;

  const float* x; // (rows, in / 2)
  const float* weight; // (out, in / 2)

  template <typename V>
  static HWY_INLINE V add_product(V a, V b, V sum) {
    return add_products_of_pairs(a, b, sum);
  }
  float number(int64_t i) const {
    return get(reinterpret_cast<const BFloat16*>(x) + i);
  }
};

/// Computes numbers [begin, end) of the output of all rows.
template <typename X, typename Operands, typename T = Compute<X>>
HWY_NOINLINE void multiply_weight(
    const LinearInput<X>& input,
    const LinearLayer<X>& layer,
    const Operands& operands,
    int64_t begin,
    int64_t end) {
  constexpr int64_t kStep = Operands::size;
  constexpr int64_t N = kLanes<T> * kStep;
  const auto in = input.in;
  // The prefetch distance of the weight, in whole groups of four rows.
  constexpr int64_t kLeast = 12 * 1024 / sizeof(X);
  const auto ahead = (kLeast + 4 * in - 1) / (4 * in) * (4 * in);
  const auto whole = in / N * N;
  const auto passes = (input.rows + kMaxRowsAtOnce - 1) / kMaxRowsAtOnce;
  for (auto o = begin; o < end; o += 4) {
    // The last four may overlap earlier ones, which are not stored again.
    const auto first = std::max<int64_t>(0, std::min(o, layer.out - 4));
    const auto* weight = layer.weight + first * in;
    for (int64_t pass = 0; pass < passes; ++pass) {
      const auto r = pass * kMaxRowsAtOnce;
      const auto left = std::min<int64_t>(input.rows - r, kMaxRowsAtOnce);
      HWY_ALIGN T sums[kMaxRowsAtOnce * 4];
      with_constant<kMaxRowsAtOnce>(static_cast<int>(left), [&](auto count) {
        multiply_four_rows<decltype(count)::value>(
            operands.x + r * in / kStep,
            in / kStep,
            operands.weight + first * in / kStep,
            in / kStep,
            whole / kStep,
            Ahead{ahead / kStep, rows_asked_in(pass, passes)},
            sums,
            4,
            [](auto a, auto b, auto sum) {
              return Operands::add_product(a, b, sum);
            });
      });
      for (int64_t k = 0; k < left; ++k) {
        for (int64_t j = o - first; j < 4; ++j) {
          auto sum = sums[k * 4 + j];
          for (auto i = whole; i < in; ++i) {
            sum += operands.number((r + k) * in + i) * get(weight + j * in + i);
          }
          if (layer.bias != nullptr) {
            sum += get(layer.bias + first + j);
          }
          put(sum, layer.output + (r + k) * layer.out + first + j);
        }
      }
    }
  }
}

/// Computes all layers. `operands_of(weight)` returns a layer's operands.
template <typename X, typename OperandsOf>
void multiply_all(
    const LinearInput<X>& input,
    const std::vector<LinearLayer<X>>& layers,
    const OperandsOf& operands_of,
    const Threads& threads) {
  // Enough of the weight to pay for waking a thread.
  constexpr int64_t kTaskNumbers = 64 * 1024;
  const auto per_task = std::max<int64_t>(4, kTaskNumbers / input.in / 4 * 4);
  run_tasks_of_stream(
      threads,
      layers,
      [&](const LinearLayer<X>& layer) {
        return (layer.out + per_task - 1) / per_task;
      },
      [&](const LinearLayer<X>& layer, int64_t i) {
        const auto begin = i * per_task;
        const auto end = std::min(begin + per_task, layer.out);
        multiply_weight(input, layer, operands_of(layer.weight), begin, end);
      });
}

/// reads input (rows, in), weights (out, in), biases (out); writes outputs
/// (rows, out).
template <typename X>
void linear(
    const LinearInput<X>& input,
    const std::vector<LinearLayer<X>>& layers,
    const Threads& threads) {
  using T = Compute<X>;
  if constexpr (kHasPairs<X>) {
    if (multiplies_pairs<X>() && input.in % 2 == 0) {
      const auto as_pairs = [](const X* x) {
        return reinterpret_cast<const float*>(x);
      };
      if (input.in_order) {
        multiply_all_in_order<ByPairsInOrder>(
            input,
            layers,
            as_pairs(input.data),
            input.in / 2,
            [&](const LinearLayer<X>& layer) { return as_pairs(layer.weight); },
            threads);
        return;
      }
      const auto by_pairs = [&](const X* weight) {
        return ByPairs{as_pairs(input.data), as_pairs(weight)};
      };
      multiply_all(input, layers, by_pairs, threads);
      return;
    }
  }
  const auto numbers = input.rows * input.in;
  const auto memory =
      allocate(static_cast<size_t>(numbers + kLanes<T>) * sizeof(T));
  auto* wide = reinterpret_cast<T*>(memory.get());
  store_each<T>(wide, numbers, [&](int64_t i, auto d) {
    return load(d, input.data + i);
  });
  if (input.in_order) {
    multiply_all_in_order<ByNumbersInOrder>(
        input,
        layers,
        wide,
        input.in,
        [](const LinearLayer<X>& layer) { return layer.weight; },
        threads);
    return;
  }
  const auto by_numbers = [&](const X* weight) {
    return ByNumbers<X>{wide, weight};
  };
  multiply_all(input, layers, by_numbers, threads);
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void linear(
    const LinearInput<X>& input,
    const std::vector<LinearLayer<X>>& layers,
    const Threads& threads) {
  TORCH_ATTENTION_DISPATCH(linear(input, layers, threads));
}

#define TORCH_ATTENTION_INSTANTIATE(X)    \
  template void linear(                   \
      const LinearInput<X>&,              \
      const std::vector<LinearLayer<X>>&, \
      const Threads&)
TORCH_ATTENTION_INSTANTIATE(float);
TORCH_ATTENTION_INSTANTIATE(BFloat16);
TORCH_ATTENTION_INSTANTIATE(Float16);
#undef TORCH_ATTENTION_INSTANTIATE

} // namespace torch_attention::cpu

#endif // HWY_ONCE
