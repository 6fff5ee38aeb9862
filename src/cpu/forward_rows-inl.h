// The forward pass over rows, where there are few queries.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/forward_row_bytes-inl.h>
#include <cpu/forward_row_memory-inl.h>
#include <cpu/forward_row_pairs-inl.h>
#include <cpu/forward_row_scores-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Returns the sum with all weights, added key by key as in a tile.
template <typename T>
HWY_NOINLINE T add_in_order(T sum, const T* weights, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    sum += weights[i];
  }
  return sum;
}

/// Turns the scores of row range.t, number `row` in `memory`, and the keys of
/// `range` into weights, and scales earlier sums.
template <typename X, typename T>
HWY_NOINLINE void weigh_row(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    int64_t row,
    const RowMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto n = range.n;
  const auto& rule = memory.rules[row];
  auto* scores = memory.scores + row * kKeyBlock;
  transform_scores<T>(rule, n, scores, nullptr);
  const bool has_added =
      has_bias_or_mask(a) && memory.map.changes(range.s, range.s_end());
  if (has_added) {
    fill_added_row(a, head, range.t, range.s, n, memory.added);
  }
  const auto highest = place_row<T>(
      rule,
      head.visibility,
      range,
      has_added ? memory.added : nullptr,
      scores,
      hn::Set(d, memory.maximum[row]));
  const auto maximum = hn::MaxOfLanes(d, highest);
  const auto shift = shift_of<T>(maximum);
  const auto factor =
      exp<true, T>(hn::Sub(hn::Set(d, memory.maximum[row]), shift));
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < kKeyBlock; i += N) {
    const auto weight = weight_of<true, T>(load(d, scores + i), shift);
    sum = hn::Add(sum, weight);
    store(weight, d, scores + i);
  }
  memory.maximum[row] = hn::GetLane(maximum);
  memory.sum[row] *= hn::GetLane(factor);
  memory.sum[row] = a.same_bits
      ? add_in_order(memory.sum[row], scores, n)
      : memory.sum[row] + hn::GetLane(hn::SumOfLanes(d, sum));
  auto* output = memory.output + row * memory.output_row;
  for (int64_t c = 0; c < memory.output_row; c += N) {
    store(hn::Mul(load(d, output + c), factor), d, output + c);
  }
}

template <typename X, typename T>
void start_rows(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    const RowMemory<T>& memory) {
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto query = head.rows_of(a.query);
  for (int64_t r = 0; r < range.rows; ++r) {
    const auto row = range.t + r;
    memory.rules[r] = head_rule(a, head.h + head.head_of(row));
    if constexpr (kHasPairs<X>) {
      if (multiplies_pairs<X>()) {
        const auto pairs = padded_to_pairs(a.head_dim) / 2;
        pack_pairs_of_columns(
            query.at(row),
            int64_t{0},
            int64_t{1},
            a.head_dim,
            memory.query + r * pairs,
            pairs);
        continue;
      }
    }
    if constexpr (kMayReadInt8<X>) {
      const auto scale = memory.rules[r].scale;
      if (a.reads_int8() &&
          start_int8_row(a, query.at(row), scale, r, memory)) {
        continue;
      }
    }
    pack_rows(
        query.at(row),
        int64_t{0},
        int64_t{1},
        a.head_dim,
        memory.rules[r].scale,
        memory.query + r * D,
        D);
  }
}

/// Starts the sums of a part of the keys.
template <typename T>
void start_part(int64_t rows, const RowMemory<T>& memory) {
  std::fill_n(memory.maximum, rows, -kInfinity<T>);
  std::fill_n(memory.sum, rows, T(0));
  fill(memory.output, rows * memory.output_row, T(0));
}

/// Ends a part of the keys: adds its sums to those of the parts before, and
/// swaps the two.
template <typename T>
void end_part(int64_t rows, RowMemory<T>& memory) {
  const Tag<T> d;
  auto& before = memory.before;
  for (int64_t r = 0; r < rows; ++r) {
    const Addition<T> addition(
        hn::Set(d, before.maximum[r]), hn::Set(d, memory.maximum[r]));
    before.maximum[r] = hn::GetLane(addition.maximum);
    HWY_ALIGN T sums[2][kLanes<T>] = {{memory.sum[r]}, {before.sum[r]}};
    addition.add(sums[0], sums[1]);
    before.sum[r] = sums[1][0];
    const auto row = r * memory.output_row;
    for (int64_t c = 0; c < memory.output_row; c += kLanes<T>) {
      addition.add(memory.output + row + c, before.output + row + c);
    }
  }
  memory.swap_with_before();
}

/// Computes the scores of rows and the keys of `range`.
template <typename X, typename T>
void multiply_keys(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches,
    const RowMemory<T>& memory) {
  if constexpr (kMayReadInt8<X>) {
    if (a.reads_int8()) {
      multiply_int8_keys(a, head, range, prefetches, memory);
      return;
    }
  }
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto key_row = a.key.strides.token;
  const auto* key = head.key.at(range.s);
  // Far enough ahead: `next_keys` has prefetched all but the first block.
  constexpr int64_t kAhead = 8;
  RowKeys<X> keys{
      key,
      key_row,
      range.n,
      next_values(a, head, range, prefetches),
      prefetches ? kAhead : 0};
  if (a.sums_in_order()) {
    keys.ahead = prefetches ? 2 * kLanes<T> : 0;
    multiply_scores_in_order<Product<Start::kZero>>(
        RowProduct<X, T>{memory.query, D, range.rows, keys, a.head_dim},
        memory.key,
        memory.scores);
    return;
  }
  const auto multiply = [&](const auto& of) {
    multiply_scores_of_rows<AddProduct>(
        memory.query, range.rows, of, D, memory.scores);
  };
  // Keys of whole vectors are read in place.
  if (D == a.head_dim) {
    multiply(keys);
  } else {
    pack_rows(key, key_row, range.n, a.head_dim, Unscaled(), memory.key, D);
    multiply(RowKeys<T>{memory.key, D, range.n});
  }
}

/// Adds the values of `range` by their weights.
template <typename X, typename T>
void add_values_to_rows(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches,
    bool nan_safe,
    const RowMemory<T>& memory) {
  if constexpr (kMayReadInt8<X>) {
    if (a.reads_int8()) {
      add_int8_values(a, head, range, prefetches, nan_safe, memory);
      return;
    }
  }
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto value_row = a.value.strides.token;
  const auto* value = head.value.at(range.s);
  const auto multiply_value = [&](const auto* x, int64_t x_row) {
    using Stored = std::remove_cv_t<std::remove_pointer_t<decltype(x)>>;
    const auto multiply = nan_safe
        ? multiply_features<
              Product<Start::kLoad, Skip::kZeroBroadcast>,
              T,
              Stored>
        : multiply_features<Product<Start::kLoad>, T, Stored>;
    multiply(
        memory.scores,
        kKeyBlock,
        range.rows,
        x,
        x_row,
        range.n,
        memory.output,
        E,
        next_keys(a, head, range, prefetches));
  };
  if (E == a.value_dim) {
    multiply_value(value, value_row);
  } else {
    pack_rows(
        value, value_row, range.n, a.value_dim, Unscaled(), memory.value, E);
    multiply_value(memory.value, E);
  }
}

/// Divides by the sums and stores.
template <typename X, typename Y, typename T>
void finish_rows(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    const RowMemory<T>& memory) {
  const auto output = head.rows_of(result.output);
  for (int64_t r = 0; r < range.rows; ++r) {
    const auto row = range.t + r;
    auto maximum = memory.maximum[r];
    auto sum = memory.sum[r];
    const auto factor = result.sinks != nullptr && sum != 0
        ? add_sink(result.sinks[head.h + head.head_of(row)], maximum, sum)
        : T(1);
    const auto scale = sum == 0 ? T(0) : result.is_part ? T(1) : factor / sum;
    const auto* sums = memory.output + r * memory.output_row;
    store_each<T>(output.at(row), a.value_dim, [&](int64_t c, auto d) {
      return hn::Mul(load(d, sums + c), hn::Set(d, scale));
    });
    if (result.statistics.sum != nullptr) {
      const auto i = head.row_index(row, a.num_queries);
      result.statistics.maximum[i] = sum == 0 ? T(0) : maximum;
      result.statistics.sum[i] = sum;
    }
  }
}

/// Attends from rows to the keys of `range`, which are of one part.
template <typename X, typename T>
void attend_rows_to_keys(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    const Range& range,
    bool nan_safe,
    const RowMemory<T>& memory) {
  const bool pairs = multiplies_pairs<X>();
  const auto end = range.s_end();
  for (int64_t s = range.s, s_end = 0; s < end; s = s_end) {
    s_end = step_end(s, kKeyBlock, end);
    const Range block{range.t, range.rows, s, s_end - s};
    if (!memory.map.sees(s, s_end)) {
      continue;
    }
    const bool asks_for_next = plan.prefetches && s_end < end;
    if constexpr (kHasPairs<X>) {
      if (pairs) {
        multiply_keys_by_pairs(a, head, block, plan.prefetches, memory);
      }
    }
    if (!pairs) {
      multiply_keys(a, head, block, plan.prefetches, memory);
    }
    for (int64_t r = 0; r < range.rows; ++r) {
      weigh_row(a, head, Range{range.t + r, 1, s, block.n}, r, memory);
    }
    if constexpr (kHasPairs<X>) {
      if (pairs) {
        add_values_by_pairs(a, head, block, asks_for_next, nan_safe, memory);
      }
    }
    if (!pairs) {
      add_values_to_rows(a, head, block, asks_for_next, nan_safe, memory);
    }
  }
}

/// Attends from rows `range` of a head, or of several interleaved heads, to the
/// keys of `range`.
///
///   reads   query (heads, T, D), key (S, D), value (S, E)
///   writes  output (heads, T, E), statistics (heads, T)
///
///   1. The queries are packed as rows (D).
///   2. For each block of keys: scores of all rows, their weights, and the sums
///      of values. The sums of each part of the keys are added to those of
///      the parts before.
///   3. The sums are divided and stored. If NaN may have come from hidden keys,
///      all steps run again, NaN-safe.
template <typename X, typename Y, typename T>
void attend_rows(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    RowMemory<T>& memory,
    bool nan_safe = false) {
  const auto& visibility = head.visibility;

  // 1.
  start_rows(a, head, range, memory);
  start_part(range.rows, memory);

  // 2.
  const auto begin = std::max(range.s, first_step(visibility, range.t));
  const auto end = std::min(range.s_end(), visibility.end(range.t_end() - 1));
  head.collect(Range{range.t, range.rows, begin, end - begin}, memory.map);
  bool is_first = true;
  for_each_part(begin, end, [&](int64_t part_begin, int64_t part_end) {
    if (!is_first) {
      memory.swap_with_before();
      start_part(range.rows, memory);
    }
    attend_rows_to_keys(
        a,
        plan,
        head,
        Range{range.t, range.rows, part_begin, part_end - part_begin},
        nan_safe,
        memory);
    if (!is_first) {
      end_part(range.rows, memory);
    }
    is_first = false;
  });

  // 3.
  if (!nan_safe && !all_finite(memory.output, range.rows * memory.output_row)) {
    attend_rows(a, plan, head, range, result, memory, true);
    return;
  }
  if constexpr (kHasPairs<X>) {
    if (multiplies_pairs<X>()) {
      order_columns(memory.output, range.rows * memory.output_row);
    }
  }
  if constexpr (kMayReadInt8<X>) {
    if (a.reads_int8()) {
      finish_int8_rows(range, memory);
    }
  }
  finish_rows(a, head, range, result, memory);
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
