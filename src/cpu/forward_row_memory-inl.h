// Memory of the forward pass over rows, and the products of rows with keys.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROW_MEMORY_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROW_MEMORY_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROW_MEMORY_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROW_MEMORY_INL_H_
#endif

#include <cpu/forward_plan-inl.h>
#include <cpu/head.h>
#include <cpu/int8-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The numbers of a vector of pairs.
constexpr int64_t kNumbersOfPairs = 2 * kLanes<float>;

inline int64_t padded_to_pairs(int64_t n) {
  return (n + kNumbersOfPairs - 1) / kNumbersOfPairs * kNumbersOfPairs;
}

/// Rows of queries that share keys and values: few, so each is a vector of
/// head_dim, and the keys are read once for all.
template <typename T>
struct RowMemory {
  /// distance between the rows of `output`
  int64_t output_row = 0;
  HeadRule<T>* rules = nullptr; // (rows)
  T* query = nullptr; // (rows, D padded), scaled; or unscaled pairs
  T* output = nullptr; // (rows, E padded)
  T* maximum = nullptr; // (rows)
  T* sum = nullptr; // (rows)
  /// of the parts before
  RowSums<T> before;
  T* scores = nullptr; // (rows, kKeyBlock), then the weights
  T* added = nullptr; // (kKeyBlock)
  TileMap map; // of all rows
  T* key = nullptr; // (kKeyBlock, D padded), or transposed
  T* value = nullptr; // (kKeyBlock, E padded)
  Int8Memory int8;

  template <typename X>
  RowMemory(Parts& parts, const AttentionArguments<X>& a, int64_t rows) {
    const bool has_integers = a.reads_int8() && multiplies_integer_pairs();
    const auto padded = [&](int64_t n) {
      return multiplies_pairs<X>() || has_integers ? padded_to_pairs(n)
                                                   : round_up_to_lanes<T>(n);
    };
    const auto D = padded(a.head_dim);
    const auto E = padded(a.value_dim);
    output_row = E;
    rules = parts.take<HeadRule<T>>(rows);
    query = parts.take<T>(rows * D);
    output = parts.take<T>(rows * E);
    maximum = parts.take<T>(rows);
    sum = parts.take<T>(rows);
    before.output = parts.take<T>(rows * E);
    before.maximum = parts.take<T>(rows);
    before.sum = parts.take<T>(rows);
    scores = parts.take<T>(rows * kKeyBlock);
    added = parts.take<T>(kKeyBlock);
    if (has_bias_or_mask(a)) {
      map = TileMap(parts, a.num_keys);
    }
    key = parts.take<T>(kKeyBlock * D);
    value = parts.take<T>(kKeyBlock * std::max(D, E));
    if (has_integers) {
      int8 = Int8Memory(parts, D, rows);
    }
  }

  void swap_with_before() {
    std::swap(maximum, before.maximum);
    std::swap(sum, before.sum);
    std::swap(output, before.output);
  }
};

/// Keys that rows are multiplied with, and the prefetches meanwhile.
template <typename X>
struct RowKeys {
  const X* key;
  int64_t key_row;
  int64_t n;
  /// The values of the keys, to be prefetched.
  NextRows values = {};
  /// Keys are prefetched so many keys before they are read; 0: not at all.
  int64_t ahead = 0;
};

/// Returns the rows of `size` numbers of X from token s on, to be prefetched;
/// none if not `prefetches`.
template <typename X>
NextRows next_rows(
    const Tokens<X>& tokens,
    int64_t s,
    int64_t size,
    bool prefetches) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(X));
  return prefetches
      ? NextRows{tokens.at(s), tokens.row * kBytes, 0, size * kBytes}
      : NextRows{};
}

/// Returns the keys after `range`, prefetched while values are multiplied.
template <typename X>
NextRows next_keys(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches) {
  return next_rows(head.key, range.s_end(), a.head_dim, prefetches);
}

/// Returns the values of `range`, prefetched while its keys are multiplied.
template <typename X>
NextRows next_values(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches) {
  return next_rows(head.value, range.s, a.value_dim, prefetches);
}

/// Sets scores[r][key] = sum over d of query[r][d] * key[key][d] for kRows
/// rows. `asked`: bits of the four keys that are prefetched.
template <int kRows, typename Add, typename T, typename X>
HWY_NOINLINE void multiply_row_scores(
    const T* query,
    const RowKeys<X>& keys,
    int64_t padded_dim,
    unsigned asked,
    T* scores) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto bytes = padded_dim * static_cast<int64_t>(sizeof(X));
  const bool asks = keys.values.any() || keys.ahead != 0;
  int64_t i = 0;
  for (; i + 4 <= keys.n; i += 4) {
    const auto* k = keys.key + i * keys.key_row;
    for (int64_t j = 0; asks && j < 4; ++j) {
      if ((asked >> j & 1) != 0) {
        keys.values.ask_for(i + j);
        if (keys.ahead != 0) {
          prefetch_row(k + (keys.ahead + j) * keys.key_row, bytes);
        }
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
        kKeyBlock,
        Add());
  }
  for (; i < keys.n; ++i) {
    for (int r = 0; r < kRows; ++r) {
      auto sum = hn::Zero(d);
      for (int64_t c = 0; c < padded_dim; c += N) {
        sum = Add()(
            load(d, query + r * padded_dim + c),
            load(d, keys.key + i * keys.key_row + c),
            sum);
      }
      scores[r * kKeyBlock + i] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

/// Multiplies all rows, as many at once as there are registers for.
template <typename Add, typename T, typename X>
void multiply_scores_of_rows(
    const T* query,
    int64_t rows,
    const RowKeys<X>& keys,
    int64_t padded_dim,
    T* scores) {
  const auto passes = (rows + kMaxRowsAtOnce - 1) / kMaxRowsAtOnce;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const auto r = pass * kMaxRowsAtOnce;
    const auto left = std::min<int64_t>(rows - r, kMaxRowsAtOnce);
    with_constant<kMaxRowsAtOnce>(static_cast<int>(left), [&](auto count) {
      multiply_row_scores<decltype(count)::value, Add>(
          query + r * padded_dim,
          keys,
          padded_dim,
          rows_asked_in(pass, passes),
          scores + r * kKeyBlock);
    });
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
