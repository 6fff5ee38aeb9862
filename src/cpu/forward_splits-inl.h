// Joins the results of the splits of the keys.

#if defined(TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/head.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The results of `forward` for each split of the keys alone, where there is
/// more than one.
template <typename T>
struct SplitResults {
  int64_t count;
  int64_t rows; // B * H * T
  AlignedMemory memory;
  T* outputs = nullptr; // (count, B, H, T, E)
  RowStatistics<T> statistics; // (count, B, H, T)

  template <typename X>
  SplitResults(const AttentionArguments<X>& a, int64_t splits)
      : count(splits), rows(a.batch_size * a.num_heads * a.num_queries) {
    if (count == 1) {
      return;
    }
    const auto take = [&](Parts& parts) {
      outputs = parts.take<T>(count * rows * a.value_dim);
      statistics.maximum = parts.take<T>(count * rows);
      statistics.sum = parts.take<T>(count * rows);
    };
    Parts needed;
    take(needed);
    memory = allocate(needed.size());
    Parts parts(memory.get());
    take(parts);
  }

  template <typename X>
  ForwardResult<T> part(const AttentionArguments<X>& a, int64_t split) const {
    Heads<T> output;
    output.data = outputs + split * rows * a.value_dim;
    output.strides.token = a.value_dim;
    output.strides.head = a.num_queries * a.value_dim;
    output.strides.batch = a.num_heads * output.strides.head;
    const auto first = split * rows;
    return {
        output, {statistics.maximum + first, statistics.sum + first}, nullptr};
  }
};

/// Joins the results of one head: each split counts as much as the sum of its
/// weights. Overwrites the output of the first split.
template <typename X, typename T>
void join_splits(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    const SplitResults<T>& from,
    const ForwardResult<X>& result) {
  const auto splits = from.count;
  const auto split_rows = from.rows;
  const auto& parts = from.statistics;
  auto* outputs = from.outputs;
  for (int64_t t = 0; t < a.num_queries; ++t) {
    const auto row = (b * a.num_heads + h) * a.num_queries + t;
    T maximum = -kInfinity<T>;
    for (int64_t i = 0; i < splits; ++i) {
      if (parts.sum[i * split_rows + row] != 0) {
        maximum = std::max(maximum, parts.maximum[i * split_rows + row]);
      }
    }
    maximum = maximum == -kInfinity<T> ? T(0) : maximum;
    // Returns the sum of a split's weights, relative to the maximum of all.
    const auto weight_of = [&](int64_t i) {
      const auto part = i * split_rows + row;
      const auto sum = parts.sum[part];
      return sum == 0 ? T(0) : sum * std::exp(parts.maximum[part] - maximum);
    };
    T sum = 0;
    for (int64_t i = 0; i < splits; ++i) {
      sum += weight_of(i);
    }
    auto joined = maximum;
    const auto factor = result.sinks != nullptr && sum != 0
        ? add_sink(result.sinks[h], joined, sum)
        : T(1);
    auto* total = outputs + row * a.value_dim;
    for (int64_t i = 0; i < splits; ++i) {
      // The output of the first split becomes the sum of all.
      const auto weight = weight_of(i);
      const auto share = weight == 0 ? T(0) : factor * weight / sum;
      const auto* part = outputs + (i * split_rows + row) * a.value_dim;
      store_each<T>(total, a.value_dim, [&](int64_t c, auto d) {
        const auto f = hn::Set(d, share);
        return i == 0 ? hn::Mul(f, load(d, part + c))
                      : hn::MulAdd(f, load(d, part + c), load(d, total + c));
      });
    }
    auto* output = at(result.output, b, h) + t * result.output.strides.token;
    store_each<T>(output, a.value_dim, [&](int64_t c, auto d) {
      return load(d, total + c);
    });
    if (result.statistics.sum != nullptr) {
      result.statistics.maximum[row] = joined;
      result.statistics.sum[row] = sum;
    }
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
