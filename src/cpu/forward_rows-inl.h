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
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <hwy/cache_control.h>

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
  RowMemory(Parts& parts, const AttentionArguments<X>& a) {
    const auto rows = a.num_queries * (a.num_heads / a.num_kv_heads);
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

HWY_INLINE void prefetch_row(const void* row, int64_t bytes) {
  const auto* line = static_cast<const char*>(row);
  for (int64_t i = 0; i < bytes; i += 64) {
    hwy::Prefetch(line + i);
  }
}

/// The sum of the 128-bit blocks of `x`.
template <typename V, typename D>
HWY_INLINE void store_sum_of_blocks(V x, D d, hn::TFromD<D>* to) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    store(x, d, to);
  } else {
    const hn::Half<D> half;
    store_sum_of_blocks(
        hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), half, to);
  }
}

/// to[i] = sum of the lanes of `sums[i]`, of four vectors at once: on their own
/// they would take three times the shuffles.
template <typename T>
HWY_INLINE void store_sums_of_lanes(
    Vector<T> sum0,
    Vector<T> sum1,
    Vector<T> sum2,
    Vector<T> sum3,
    T* to) {
  const Tag<T> d;
  if constexpr (sizeof(T) == 4) {
    const hn::Repartition<double, Tag<T>> pairs;
    const auto joined = [&](Vector<T> x, Vector<T> y) {
      return hn::Add(
          hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
    };
    const auto low = hn::BitCast(pairs, joined(sum0, sum1));
    const auto high = hn::BitCast(pairs, joined(sum2, sum3));
    // In each 128 bits one number of each sum.
    const auto blocks = hn::Add(
        hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
        hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
    store_sum_of_blocks(blocks, d, to);
  } else {
    to[0] = hn::GetLane(hn::SumOfLanes(d, sum0));
    to[1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    to[2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    to[3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
}

/// scores[key] = sum over d of query[d] * key[key][d]. Unless `value` is null,
/// asks for the keys after these and for the rows of `value`.
template <typename T, typename X, typename Y>
HWY_NOINLINE void multiply_row_scores(
    const T* query,
    const X* key,
    int64_t key_row,
    int64_t num_keys,
    int64_t padded_dim,
    const Y* value,
    int64_t value_row,
    T* scores) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  // The memory is what takes time: ask for it in time.
  constexpr int64_t kAhead = 16;
  const auto bytes = padded_dim * static_cast<int64_t>(sizeof(X));
  int64_t i = 0;
  for (; i + 4 <= num_keys; i += 4) {
    const auto* k = key + i * key_row;
    if (value != nullptr) {
      for (int64_t j = 0; j < 4; ++j) {
        prefetch_row(k + (kAhead + j) * key_row, bytes);
        prefetch_row(value + (i + j) * value_row, bytes);
      }
    }
    auto sum0 = hn::Zero(d);
    auto sum1 = sum0;
    auto sum2 = sum0;
    auto sum3 = sum0;
    for (int64_t c = 0; c < padded_dim; c += N) {
      const auto q = load(d, query + c);
      sum0 = hn::MulAdd(q, load(d, k + c), sum0);
      sum1 = hn::MulAdd(q, load(d, k + key_row + c), sum1);
      sum2 = hn::MulAdd(q, load(d, k + 2 * key_row + c), sum2);
      sum3 = hn::MulAdd(q, load(d, k + 3 * key_row + c), sum3);
    }
    store_sums_of_lanes(sum0, sum1, sum2, sum3, scores + i);
  }
  for (; i < num_keys; ++i) {
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < padded_dim; c += N) {
      sum = hn::MulAdd(load(d, query + c), load(d, key + i * key_row + c), sum);
    }
    scores[i] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

/// The rows of the heads that share a head of keys: those of head first_head,
/// one for each query, then those of the next.
struct SharedRows {
  int64_t b = 0;
  int64_t first_head = 0;
  int64_t rows = 0;
  int64_t num_queries = 0;

  int64_t head(int64_t row) const {
    return first_head + row / num_queries;
  }

  int64_t query(int64_t row) const {
    return row % num_queries;
  }
};

/// One row against the keys of `range`: scores become weights, and what was
/// summed before is scaled.
template <typename X, typename T>
HWY_NOINLINE void weigh_row(
    const AttentionArguments<X>& a,
    const SharedRows& shared,
    const Visibility& visibility,
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
    const auto head = head_at(a, shared.b, shared.head(row));
    fill_added_row(a, head, range.t, range.s, n, memory.added);
  }
  const auto highest = place_row<T>(
      rule,
      visibility,
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
    const SharedRows& shared,
    const RowMemory<T>& memory) {
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  for (int64_t r = 0; r < shared.rows; ++r) {
    memory.rules[r] = head_rule(a, shared.head(r));
    const auto* query = at(a.query, shared.b, shared.head(r)) +
        shared.query(r) * a.query.strides.token;
    pack_rows(
        query,
        int64_t{0},
        int64_t{1},
        a.head_dim,
        memory.rules[r].scale,
        memory.query + r * D,
        D);
    memory.maximum[r] = -kInfinity<T>;
    memory.sum[r] = 0;
  }
  fill(memory.output, shared.rows * E, T(0));
}

/// Divides by the sums and stores.
template <typename X, typename Y, typename T>
void finish_rows(
    const AttentionArguments<X>& a,
    const SharedRows& shared,
    const ForwardResult<Y>& result,
    const RowMemory<T>& memory) {
  const auto E = round_up_to_lanes<T>(a.value_dim);
  for (int64_t r = 0; r < shared.rows; ++r) {
    const auto h = shared.head(r);
    const auto t = shared.query(r);
    auto maximum = memory.maximum[r];
    auto sum = memory.sum[r];
    const auto factor = result.sinks != nullptr && sum != 0
        ? add_sink(result.sinks[h], maximum, sum)
        : T(1);
    const auto scale = sum == 0 ? T(0) : factor / sum;
    auto* output =
        at(result.output, shared.b, h) + t * result.output.strides.token;
    const auto* sums = memory.output + r * E;
    store_each<T>(output, a.value_dim, [&](int64_t c, auto d) {
      return hn::Mul(load(d, sums + c), hn::Set(d, scale));
    });
    if (result.statistics.sum != nullptr) {
      const auto row = (shared.b * a.num_heads + h) * a.num_queries + t;
      result.statistics.maximum[row] = sum == 0 ? T(0) : maximum;
      result.statistics.sum[row] = sum;
    }
  }
}

/// All queries of the heads that share head g of keys, against the keys of
/// [s_begin, s_end).
///
///   reads   query (H / G, T, D), key (S, D), value (S, E)
///   writes  output (H / G, T, E), statistics (H / G, T)
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
    int64_t b,
    int64_t g,
    int64_t s_begin,
    int64_t s_end,
    const ForwardResult<Y>& result,
    RowMemory<T>& memory,
    bool careful = false) {
  const auto group = a.num_heads / a.num_kv_heads;
  const SharedRows shared{b, g * group, group * a.num_queries, a.num_queries};
  const auto rows = shared.rows;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto first_head = head_at(a, b, g * group);
  const auto& visibility = first_head.visibility;

  // 1.
  start_rows(a, shared, memory);

  // 2. Keys and values are read where they are if they are whole vectors,
  // unless many rows would convert each of them again.
  const bool converts_often = !std::is_same_v<X, T> && rows > 2;
  const bool reads_key = D == a.head_dim && !converts_often;
  const bool reads_value = E == a.value_dim && !converts_often;
  const auto begin = std::max(s_begin, visibility.first(0));
  const auto end = std::min(s_end, visibility.end(a.num_queries - 1));
  for (auto s = begin; s < end; s += kKeyBlock) {
    const auto n = std::min(kKeyBlock, end - s);
    const auto key_row = a.key.strides.token;
    const auto value_row = a.value.strides.token;
    const auto* key = first_head.key + s * key_row;
    const auto* value = first_head.value + s * value_row;
    const auto multiply_key = [&](const auto* x, int64_t x_row) {
      for (int64_t r = 0; r < rows; ++r) {
        multiply_row_scores(
            memory.query + r * D,
            x,
            x_row,
            n,
            D,
            plan.prefetches && r == 0 && reads_key ? value : nullptr,
            value_row,
            memory.scores + r * kKeyBlock);
      }
    };
    if (reads_key) {
      multiply_key(key, key_row);
    } else {
      pack_rows(key, key_row, n, a.head_dim, T(1), memory.key, D);
      multiply_key(memory.key, D);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Range range{shared.query(r), 1, s, n};
      weigh_row(a, shared, visibility, range, r, memory);
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
    attend_rows(a, plan, b, g, s_begin, s_end, result, memory, true);
    return;
  }
  finish_rows(a, shared, result, memory);
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
