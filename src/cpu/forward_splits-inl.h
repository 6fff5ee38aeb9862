// Joins the results of the splits of the keys.

#if defined(TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_SPLITS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/dropout-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/head.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

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
        output,
        {statistics.maximum + first, statistics.sum + first},
        /*sinks=*/nullptr,
        /*is_part=*/true};
  }
};

/// Adds up the results of one head's parts in their order, as a task does that
/// computes all of them. Overwrites the output of the first part.
template <typename X, typename T>
void join_splits(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    const SplitResults<T>& from,
    const ForwardResult<X>& result) {
  const Tag<T> d;
  const auto& parts = from.statistics;
  for (int64_t t = 0; t < a.num_queries; ++t) {
    const auto row = (b * a.num_heads + h) * a.num_queries + t;
    T maximum = 0;
    T sum = 0;
    auto* total = from.outputs + row * a.value_dim;
    for (int64_t i = 0; i < from.count; ++i) {
      const auto part = i * from.rows + row;
      const auto* output = from.outputs + part * a.value_dim;
      if (parts.sum[part] == 0) {
        continue;
      }
      if (sum == 0) {
        maximum = parts.maximum[part];
        sum = parts.sum[part];
        store_each<T>(total, a.value_dim, [&](int64_t c, auto dc) {
          return load(dc, output + c);
        });
        continue;
      }
      const Addition<T> addition(
          hn::Set(d, maximum), hn::Set(d, parts.maximum[part]));
      const auto factor = hn::GetLane(addition.factor);
      const auto factor_of_part = hn::GetLane(addition.factor_of_part);
      const auto add = [&](auto dc, const T* x, const T* to) {
        const auto before = hn::Mul(load(dc, to), hn::Set(dc, factor));
        return hn::MulAdd(load(dc, x), hn::Set(dc, factor_of_part), before);
      };
      maximum = hn::GetLane(addition.maximum);
      const hn::CappedTag<T, 1> one;
      sum = hn::GetLane(add(one, parts.sum + part, &sum));
      store_each<T>(total, a.value_dim, [&](int64_t c, auto dc) {
        return add(dc, output + c, total + c);
      });
    }
    auto scale = static_cast<T>(dropout_of(a).scale());
    if (result.sinks != nullptr && sum != 0) {
      scale *= add_sink(result.sinks[h], maximum, sum);
    }
    scale = sum == 0 ? T(0) : scale / sum;
    auto* output = at(result.output, b, h) + t * result.output.strides.token;
    store_each<T>(output, a.value_dim, [&](int64_t c, auto dc) {
      return sum == 0 ? hn::Zero(dc)
                      : hn::Mul(load(dc, total + c), hn::Set(dc, scale));
    });
    if (result.statistics.sum != nullptr) {
      result.statistics.maximum[row] = maximum;
      result.statistics.sum[row] = sum;
    }
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
