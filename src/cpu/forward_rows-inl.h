// The pass forward over rows, where there are few queries.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROWS_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Rows of queries that share keys and values: few, so each is a vector of
/// head_dim, and the keys are read once for all.
template <typename T>
struct RowMemory {
  HeadRule<T>* rules = nullptr; // (rows)
  T* query = nullptr; // (rows, D padded), scaled
  T* output = nullptr; // (rows, E padded)
  T* maximum = nullptr; // (rows)
  T* sum = nullptr; // (rows)
  T* scores = nullptr; // (rows, kKeyBlock)
  T* added = nullptr; // (kKeyBlock)
  T* key = nullptr; // (kKeyBlock, D padded)
  T* value = nullptr; // (kKeyBlock, E padded)

  template <typename X>
  RowMemory(Parts& parts, const AttentionArguments<X>& a, int64_t rows) {
    const auto D = round_up_to_lanes<T>(a.head_dim);
    const auto E = round_up_to_lanes<T>(a.value_dim);
    rules = parts.take<HeadRule<T>>(rows);
    query = parts.take<T>(rows * D);
    output = parts.take<T>(rows * E);
    maximum = parts.take<T>(rows);
    sum = parts.take<T>(rows);
    scores = parts.take<T>(rows * kKeyBlock);
    added = parts.take<T>(kKeyBlock);
    key = parts.take<T>(kKeyBlock * D);
    value = parts.take<T>(kKeyBlock * E);
  }
};

/// Keys that rows are multiplied with, and what comes from memory after them.
template <typename X>
struct RowKeys {
  const X* key;
  int64_t key_row;
  int64_t n;
  /// to be asked for meanwhile, with the keys that come next; null: nothing is
  const X* value;
  int64_t value_row;
};

/// scores[r][key] = sum over d of query[r][d] * key[key][d] for kRows rows.
template <int kRows, typename T, typename X>
HWY_NOINLINE void multiply_row_scores(
    const T* query,
    const RowKeys<X>& keys,
    int64_t padded_dim,
    T* scores) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  // The memory is what takes time: ask for it in time.
  constexpr int64_t kAhead = 16;
  const auto bytes = padded_dim * static_cast<int64_t>(sizeof(X));
  int64_t i = 0;
  for (; i + 4 <= keys.n; i += 4) {
    const auto* k = keys.key + i * keys.key_row;
    if (keys.value != nullptr) {
      for (int64_t j = 0; j < 4; ++j) {
        prefetch_row(k + (kAhead + j) * keys.key_row, bytes);
        prefetch_row(keys.value + (i + j) * keys.value_row, bytes);
      }
    }
    multiply_four_rows<kRows>(
        query,
        padded_dim,
        k,
        keys.key_row,
        padded_dim,
        Ahead(),
        scores + i,
        kKeyBlock);
  }
  for (; i < keys.n; ++i) {
    for (int r = 0; r < kRows; ++r) {
      auto sum = hn::Zero(d);
      for (int64_t c = 0; c < padded_dim; c += N) {
        sum = hn::MulAdd(
            load(d, query + r * padded_dim + c),
            load(d, keys.key + i * keys.key_row + c),
            sum);
      }
      scores[r * kKeyBlock + i] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

/// Row range.t, the one with number `row` here, against the keys of `range`:
/// scores become weights, and what was summed before is scaled.
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
  const auto hidden = -kInfinity<T>;
  bend_scores<T>(rule, n, scores, nullptr);
  const bool has_added = has_bias_or_mask(a);
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
  const auto shift =
      hn::IfThenZeroElse(hn::Eq(maximum, hn::Set(d, hidden)), maximum);
  const auto factor =
      exp<true, T>(hn::Sub(hn::Set(d, memory.maximum[row]), shift));
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < kKeyBlock; i += N) {
    const auto weight = weight_of<true, T>(load(d, scores + i), shift);
    sum = hn::Add(sum, weight);
    store(weight, d, scores + i);
  }
  memory.maximum[row] = hn::GetLane(maximum);
  memory.sum[row] = memory.sum[row] * hn::GetLane(factor) +
      hn::GetLane(hn::SumOfLanes(d, sum));
  const auto E = round_up_to_lanes<T>(a.value_dim);
  auto* output = memory.output + row * E;
  for (int64_t c = 0; c < E; c += N) {
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
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto query = head.rows_of(a.query);
  for (int64_t r = 0; r < range.rows; ++r) {
    const auto row = range.t + r;
    memory.rules[r] = head_rule(a, head.h + head.head_of(row));
    pack_rows(
        query.at(row),
        int64_t{0},
        int64_t{1},
        a.head_dim,
        memory.rules[r].scale,
        memory.query + r * D,
        D);
    memory.maximum[r] = -kInfinity<T>;
    memory.sum[r] = 0;
  }
  fill(memory.output, range.rows * E, T(0));
}

/// Divides by the sums and stores.
template <typename X, typename Y, typename T>
void finish_rows(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    const RowMemory<T>& memory) {
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto output = head.rows_of(result.output);
  for (int64_t r = 0; r < range.rows; ++r) {
    const auto row = range.t + r;
    auto maximum = memory.maximum[r];
    auto sum = memory.sum[r];
    const auto factor = result.sinks != nullptr && sum != 0
        ? add_sink(result.sinks[head.h + head.head_of(row)], maximum, sum)
        : T(1);
    const auto scale = sum == 0 ? T(0) : factor / sum;
    const auto* sums = memory.output + r * E;
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

/// Rows `range` of a head or of several by turns, against the keys of `range`.
///
///   reads   query (heads, T, D), key (S, D), value (S, E)
///   writes  output (heads, T, E), statistics (heads, T)
///
///   1. The queries are packed as rows (D).
///   2. For each block of keys: scores of all rows, their weights, and the sums
///      of values.
///   3. The sums are divided and stored. If NaN may have come from what was
///      hidden, all again with care.
template <typename X, typename Y, typename T>
void attend_rows(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    RowMemory<T>& memory,
    bool careful = false) {
  const auto rows = range.rows;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto& visibility = head.visibility;

  // 1.
  start_rows(a, head, range, memory);

  // 2. Keys and values are read where they are if they are whole vectors.
  const bool reads_key = D == a.head_dim;
  const bool reads_value = E == a.value_dim;
  const auto begin = std::max(range.s, visibility.first(range.t));
  const auto end = std::min(range.s_end(), visibility.end(range.t_end() - 1));
  for (auto s = begin; s < end; s += kKeyBlock) {
    const auto n = std::min(kKeyBlock, end - s);
    const auto key_row = a.key.strides.token;
    const auto value_row = a.value.strides.token;
    const auto* key = head.key + s * key_row;
    const auto* value = head.value + s * value_row;
    const auto multiply_key = [&](auto keys) {
      for (int64_t r = 0; r < rows;) {
        const auto left = std::min<int64_t>(rows - r, kMaxRowsAtOnce);
        with_constant<kMaxRowsAtOnce>(static_cast<int>(left), [&](auto count) {
          multiply_row_scores<decltype(count)::value>(
              memory.query + r * D, keys, D, memory.scores + r * kKeyBlock);
        });
        r += left;
        keys.value = nullptr;
      }
    };
    if (reads_key) {
      multiply_key(RowKeys<X>{
          key, key_row, n, plan.prefetches ? value : nullptr, value_row});
    } else {
      pack_rows(key, key_row, n, a.head_dim, T(1), memory.key, D);
      multiply_key(RowKeys<T>{memory.key, D, n, nullptr, 0});
    }
    for (int64_t r = 0; r < rows; ++r) {
      weigh_row(a, head, Range{range.t + r, 1, s, n}, r, memory);
    }
    const auto multiply_value = [&](const auto* x, int64_t x_row) {
      using Stored = std::remove_cv_t<std::remove_pointer_t<decltype(x)>>;
      const auto multiply = careful
          ? multiply_features<
                Product<Start::kLoad, Skip::kZeroBroadcast>,
                T,
                Stored>
          : multiply_features<Product<Start::kLoad>, T, Stored>;
      multiply(memory.scores, kKeyBlock, rows, x, x_row, n, memory.output, E);
    };
    if (reads_value) {
      multiply_value(value, value_row);
    } else {
      pack_rows(value, value_row, n, a.value_dim, T(1), memory.value, E);
      multiply_value(memory.value, E);
    }
  }

  // 3.
  if (!careful && !all_finite(memory.output, rows * E)) {
    attend_rows(a, plan, head, range, result, memory, true);
    return;
  }
  finish_rows(a, head, range, result, memory);
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
