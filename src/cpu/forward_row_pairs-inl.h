// The products of the forward pass over rows, by pairs of bfloat16.
//
// Scores are sums over pairs of neighbours in head_dim, which are read in
// place. For sums of values, pairs of the numbers of two keys are made in
// registers; these come out of order, and so do the columns of the sums until
// `order_columns`.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROW_PAIRS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROW_PAIRS_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROW_PAIRS_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROW_PAIRS_INL_H_
#endif

#include <cpu/forward_row_memory-inl.h>
#include <cpu/forward_row_scores-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/pairs-inl.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

#if TORCH_ATTENTION_HAS_PAIRS

/// Returns whether rows are whole vectors of pairs, readable as floats.
inline bool is_of_pairs(int64_t columns, int64_t row) {
  return columns % kNumbersOfPairs == 0 && row % 2 == 0;
}

/// Computes the scores of rows and the keys of `range`.
template <typename X>
void multiply_keys_by_pairs(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches,
    const RowMemory<float>& memory) {
  const Tag<float> d;
  const auto D = padded_to_pairs(a.head_dim) / 2;
  const auto key_row = a.key.strides.token;
  const auto* key = head.key.at(range.s);
  RowKeys<float> keys{memory.value, D, range.n};
  if (is_of_pairs(a.head_dim, key_row)) {
    keys.key = reinterpret_cast<const float*>(key);
    keys.key_row = key_row / 2;
    keys.values = next_values(a, head, range, prefetches);
  } else {
    // The memory of values is free until the scores are weights.
    pack_pairs_of_columns(key, key_row, range.n, a.head_dim, memory.value, D);
  }
  if (a.sums_in_order()) {
    multiply_scores_in_order<PairProduct<Product<Start::kZero>>>(
        RowProduct<float, float>{
            memory.query, D, range.rows, keys, num_pairs(a.head_dim)},
        memory.key,
        memory.scores);
  } else {
    multiply_scores_of_rows<AddProductOfPairs>(
        memory.query, range.rows, keys, D, memory.scores);
  }
  // Scaled queries may not fit bfloat16.
  const auto scale = hn::Set(d, head.rule.scale);
  for (int64_t r = 0; r < range.rows; ++r) {
    auto* scores = memory.scores + r * kKeyBlock;
    for (int64_t i = 0; i < range.n; i += kLanes<float>) {
      store(hn::Mul(load(d, scores + i), scale), d, scores + i);
    }
  }
}

/// The rows whose sums of a vector of pairs stay in registers.
constexpr int kMaxPairRows = 8;

/// Adds to output[r][c] the sum over keys of weights[r][key] * value[key][c],
/// for kRows rows and the columns of one vector of pairs. kNanSafe: leaves out
/// values whose weight is 0. Prefetches the first n rows of `next`.
template <int kRows, bool kNanSafe, typename X>
HWY_NOINLINE void multiply_pairs_of_keys(
    const float* weights, // pairs (kRows, kKeyBlock / 2)
    const X* value,
    int64_t value_row,
    int64_t n,
    const NextRows& next,
    float* output,
    int64_t output_row) {
  const Tag<float> d;
  const hn::Repartition<uint16_t, Tag<float>> numbers;
  constexpr int N = kLanes<float>;
  Vector<float> sum[kRows][2];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = load(d, output + r * output_row);
    sum[r][1] = load(d, output + r * output_row + N);
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(value);
  for (int64_t i = 0; i < n; i += 2) {
    next.ask_for(i);
    next.ask_for(i + 1);
    const auto first = hn::LoadU(numbers, bits + i * value_row);
    const auto second = i + 1 < n
        ? hn::LoadU(numbers, bits + (i + 1) * value_row)
        : hn::Zero(numbers);
    const Vector<float> pairs[2] = {
        hn::BitCast(d, hn::InterleaveLower(numbers, first, second)),
        hn::BitCast(d, hn::InterleaveUpper(numbers, first, second))};
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, weights[r * (kKeyBlock / 2) + i / 2]);
      HWY_UNROLL(2)
      for (int v = 0; v < 2; ++v) {
        sum[r][v] = add_products_of_pairs(
            weight,
            kNanSafe ? zero_beside_zero(pairs[v], weight) : pairs[v],
            sum[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    store(sum[r][0], d, output + r * output_row);
    store(sum[r][1], d, output + r * output_row + N);
  }
}

/// Adds the values of `range` by their weights, which become pairs.
template <typename X>
void add_values_by_pairs(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    bool prefetches,
    bool nan_safe,
    const RowMemory<float>& memory) {
  const auto E = memory.output_row;
  auto value_row = a.value.strides.token;
  const auto* value = head.value.at(range.s);
  if (a.value_dim != E) {
    pack_pairs_of_columns(
        value, value_row, range.n, a.value_dim, memory.value, E / 2);
    value = reinterpret_cast<const X*>(memory.value);
    value_row = E;
  }
  pair_columns(memory.scores, range.rows, kKeyBlock, kKeyBlock);
  const auto next = next_keys(a, head, range, prefetches);
  for (int64_t c = 0; c < E; c += kNumbersOfPairs) {
    const auto of_columns = next.part(c, c + kNumbersOfPairs, E);
    for (int64_t r = 0; r < range.rows; r += kMaxPairRows) {
      const auto rows = std::min<int64_t>(range.rows - r, kMaxPairRows);
      with_constant<kMaxPairRows>(static_cast<int>(rows), [&](auto count) {
        constexpr int kRows = decltype(count)::value;
        const auto multiply = nan_safe
            ? multiply_pairs_of_keys<kRows, true, X>
            : multiply_pairs_of_keys<kRows, false, X>;
        multiply(
            memory.scores + r * (kKeyBlock / 2),
            value + c,
            value_row,
            range.n,
            of_columns.part(r, r + rows, range.rows),
            memory.output + r * E + c,
            E);
      });
    }
  }
}

/// Puts the columns of sums in order: alternately four of the first and four of
/// the second half of each vector of pairs.
inline void order_columns(float* sums, int64_t n) {
  constexpr int64_t kFour = 4;
  for (int64_t i = 0; i < n; i += kNumbersOfPairs) {
    float ordered[kNumbersOfPairs];
    for (int64_t c = 0; c < kNumbersOfPairs; c += 2 * kFour) {
      std::memcpy(ordered + c, sums + i + c / 2, kFour * sizeof(float));
      std::memcpy(
          ordered + c + kFour,
          sums + i + kLanes<float> + c / 2,
          kFour * sizeof(float));
    }
    std::memcpy(sums + i, ordered, sizeof(ordered));
  }
}

#endif

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
