// The products of the forward pass over rows with keys and values of int8.
//
// Where the processor multiplies 16-bit integers by pairs (AVX512_VNNI),
// queries and weights are rounded to 16 bits, far less than keys and values
// are, and sums are exact. As for pairs of bfloat16, sums of values come out of
// order until `order_columns`. Other processors convert a block of keys to
// floats.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROW_BYTES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROW_BYTES_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROW_BYTES_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROW_BYTES_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_row_memory-inl.h>
#include <cpu/forward_row_pairs-inl.h>
#include <cpu/forward_row_scores-inl.h>
#include <cpu/head.h>
#include <cpu/int8-inl.h>
#include <cpu/products-inl.h>
#include <cpu/row_products-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Keys or values of one head.
struct Int8Tokens {
  Tokens<int8_t> rows;
  int64_t size; // numbers of a row
  int64_t scale;

  /// Returns rows from token s on, to be prefetched.
  NextRows next(int64_t s, bool prefetches) const {
    const auto bytes =
        std::max(size, scale + static_cast<int64_t>(sizeof(float)));
    return prefetches ? NextRows{rows.at(s), rows.row, 0, bytes} : NextRows{};
  }
};

/// Returns the rows of `size` numbers that a head reads, whose blocks are
/// `table`, or null.
inline Int8Tokens int8_tokens_of(
    const AttentionArguments<float>& a,
    const Int8Rows& stored,
    const void* const* table,
    int64_t size,
    const Head<float>& head) {
  const auto g = head.h / (a.num_heads / a.num_kv_heads);
  return {
      tokens_of(stored.rows, table, a.blocks, head.b, g), size, stored.scale};
}

inline Int8Tokens int8_keys_of(
    const AttentionArguments<float>& a,
    const Head<float>& head) {
  return int8_tokens_of(a, a.int8_key, a.blocks.keys, a.head_dim, head);
}
inline Int8Tokens int8_values_of(
    const AttentionArguments<float>& a,
    const Head<float>& head) {
  return int8_tokens_of(a, a.int8_value, a.blocks.values, a.value_dim, head);
}

#if HWY_TARGET == HWY_AVX3

/// Pairs of 16-bit integers, which the products add up in 32 bits.
using ShortTag = Tag<int16_t>;
using Shorts = Vector<int16_t>;
using Integers = Vector<int32_t>;

/// Returns, in each lane, sum + the sum of the products of a pair.
HWY_INLINE Integers add_products_of_integers(Shorts a, Shorts b, Integers sum) {
  // Highway 1.0 has no such operation.
  // NOLINTNEXTLINE(hicpp-no-assembler)
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "vm"(b.raw));
  return sum;
}

/// Loads the columns from c on of a row of n numbers; those beyond are 0, and
/// not read.
HWY_INLINE Shorts load_shorts(const int8_t* row, int64_t c, int64_t n) {
  const ShortTag d;
  const hn::Rebind<int8_t, ShortTag> bytes;
  const auto* at = row + c;
  if (c + kLanes<int16_t> <= n) {
    return hn::PromoteTo(d, hn::LoadU(bytes, at));
  }
  const auto mask = hn::FirstN(bytes, static_cast<size_t>(n - c));
  return hn::PromoteTo(d, hn::MaskedLoad(mask, bytes, at));
}

/// Numbers whose largest is below count as 0: its inverse has to be finite.
constexpr float kLeastToRound = 0x1.0p-100F;

/// Rounds a query of n numbers to integers times `query_scale`, which has the
/// `scale` of scores in it. A query that is not finite gets the scale NaN.
inline void round_query(
    const float* x,
    int64_t n,
    float scale,
    int64_t row,
    const Int8Memory& memory) {
  constexpr float kMost = 32767;
  const auto D = padded_to_pairs(n);
  auto* to = memory.query + row * D;
  const auto largest = largest_or_nan(x, n);
  const bool finite = std::isfinite(largest);
  const bool counts = finite && largest >= kLeastToRound;
  memory.query_scale[row] = !finite ? std::numeric_limits<float>::quiet_NaN()
      : counts                      ? scale * (largest / kMost)
                                    : 0;
  const auto factor = counts ? kMost / largest : 0.0F;
  std::fill(to, to + D, int16_t{0});
  for_lanes<float>(counts ? n : 0, [&](int64_t i, auto d) {
    const hn::Rebind<int16_t, decltype(d)> shorts;
    const auto whole =
        hn::NearestInt(hn::Mul(load(d, x + i), hn::Set(d, factor)));
    hn::StoreU(hn::DemoteTo(shorts, whole), shorts, to + i);
  });
}

/// Sets scores[r][key] to the products of kRows queries and n keys, without
/// their scales. Prefetches keys `ahead` and values.
///
/// The sum of a lane is at most D / 16 * 127 * 32767, which fits for D <= 8192.
template <int kRows>
HWY_NOINLINE void multiply_int8_scores(
    const int16_t* query,
    const RowKeys<int8_t>& keys,
    int64_t head_dim,
    unsigned asked,
    float* scores) {
  const Tag<float> d;
  const ShortTag shorts;
  const Tag<int32_t> integers;
  const auto D = padded_to_pairs(head_dim);
  const bool asks = keys.values.any() || keys.ahead != 0;
  for (int64_t i = 0; i < keys.n; i += 4) {
    const int8_t* key[4];
    for (int64_t j = 0; j < 4; ++j) {
      // Beyond the last key its scores are computed again.
      key[j] = keys.key + std::min(i + j, keys.n - 1) * keys.key_row;
      if (asks && (asked >> j & 1) != 0) {
        keys.values.ask_for(i + j);
        if (keys.ahead != 0) {
          prefetch_row(key[j] + keys.ahead * keys.key_row, keys.key_row);
        }
      }
    }
    Integers sum[kRows][4];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        sum[r][j] = hn::Zero(integers);
      }
    }
    for (int64_t c = 0; c < D; c += kLanes<int16_t>) {
      Shorts in[4];
      HWY_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        in[j] = load_shorts(key[j], c, head_dim);
      }
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const auto factor = hn::LoadU(shorts, query + r * D + c);
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) {
          sum[r][j] = add_products_of_integers(in[j], factor, sum[r][j]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      store_sums_of_lanes<float>(
          hn::ConvertTo(d, sum[r][0]),
          hn::ConvertTo(d, sum[r][1]),
          hn::ConvertTo(d, sum[r][2]),
          hn::ConvertTo(d, sum[r][3]),
          scores + r * kKeyBlock + i);
    }
  }
}

/// Reads the scales of n rows; those beyond are 0.
inline void read_scales(
    const Int8Tokens& tokens,
    int64_t s,
    int64_t n,
    float* scales) {
  const auto* at = tokens.rows.at(s) + tokens.scale;
  for (int64_t i = 0; i < n; ++i) {
    scales[i] = scale_at(at + i * tokens.rows.row);
  }
  std::fill(scales + n, scales + kKeyBlock, 0.0F);
}

/// Computes the scores of rows and the keys of `range`.
inline void multiply_int8_keys_by_pairs(
    const Int8Tokens& keys,
    const Int8Tokens& values,
    const Range& range,
    bool prefetches,
    const RowMemory<float>& memory) {
  const Tag<float> d;
  const auto& own = memory.int8;
  const auto D = padded_to_pairs(keys.size);
  constexpr int64_t kAhead = 8;
  const RowKeys<int8_t> from{
      keys.rows.at(range.s),
      keys.rows.row,
      range.n,
      values.next(range.s, prefetches),
      prefetches ? kAhead : 0};
  const auto passes = (range.rows + kMaxRowsAtOnce - 1) / kMaxRowsAtOnce;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const auto r = pass * kMaxRowsAtOnce;
    const auto rows = std::min<int64_t>(range.rows - r, kMaxRowsAtOnce);
    with_constant<kMaxRowsAtOnce>(static_cast<int>(rows), [&](auto count) {
      multiply_int8_scores<decltype(count)::value>(
          own.query + r * D,
          from,
          keys.size,
          rows_asked_in(pass, passes),
          memory.scores + r * kKeyBlock);
    });
  }
  read_scales(keys, range.s, range.n, own.scales);
  for (int64_t r = 0; r < range.rows; ++r) {
    auto* scores = memory.scores + r * kKeyBlock;
    const auto query_scale = hn::Set(d, own.query_scale[r]);
    for (int64_t i = 0; i < range.n; i += kLanes<float>) {
      const auto scale = hn::Mul(load(d, own.scales + i), query_scale);
      store(hn::Mul(load(d, scores + i), scale), d, scores + i);
    }
  }
}

/// Rounds a block's weights times the scales of the values to integers times
/// `weight_scale`. A weight of 0 stays 0 whatever the scale is. If another
/// product is not finite, `weight_scale` is NaN.
inline void round_weights(
    const float* weights,
    int64_t row,
    const Int8Memory& memory) {
  const Tag<float> d;
  const hn::Rebind<int16_t, Tag<float>> shorts;
  constexpr int N = kLanes<float>;
  constexpr float kMost = 32767;
  Vector<float> products[kKeyBlock / N];
  auto most = hn::Zero(d);
  auto unusual = hn::Zero(d);
  HWY_UNROLL(4)
  for (int64_t i = 0; i < kKeyBlock / N; ++i) {
    const auto weight = load(d, weights + i * N);
    products[i] = hn::IfThenZeroElse(
        hn::Eq(weight, hn::Zero(d)),
        hn::Mul(weight, load(d, memory.scales + i * N)));
    most = hn::Max(most, products[i]);
    unusual = hn::MulAdd(products[i], hn::Zero(d), unusual);
  }
  const auto largest = hn::GetLane(hn::MaxOfLanes(d, most));
  const bool finite = hn::AllTrue(d, hn::Eq(unusual, hn::Zero(d)));
  const bool counts = finite && largest >= kLeastToRound;
  memory.weight_scale[row] = !finite ? std::numeric_limits<float>::quiet_NaN()
      : counts                       ? largest / kMost
                                     : 0;
  const auto factor = hn::Set(d, counts ? kMost / largest : 0.0F);
  HWY_UNROLL(4)
  for (int64_t i = 0; i < kKeyBlock / N; ++i) {
    const auto whole = hn::NearestInt(hn::Mul(products[i], factor));
    hn::StoreU(
        hn::DemoteTo(shorts, whole),
        shorts,
        memory.weights + row * kKeyBlock + i * N);
  }
}

/// Adds to output[r][c] the sums over n keys of weights[r][key] *
/// value[key][c], for kRows rows and the columns of kGroups vectors of pairs.
/// Prefetches the first n rows of `next`.
///
/// Sums are at most 64 * 32767 * 127, which fits.
template <int kRows, int kGroups>
HWY_NOINLINE void multiply_int8_values(
    const Int8Memory& memory,
    int64_t first_row,
    const RowKeys<int8_t>& values,
    int64_t c,
    int64_t value_dim,
    const NextRows& next,
    float* output,
    int64_t output_row) {
  const Tag<float> d;
  const ShortTag shorts;
  const Tag<int32_t> integers;
  constexpr int N = kLanes<float>;
  constexpr int kVectors = 2 * kGroups;
  Integers sum[kRows][kVectors];
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::Zero(integers);
    }
  }
  const auto* weights = memory.weights + first_row * kKeyBlock;
  for (int64_t i = 0; i < values.n; i += 2) {
    next.ask_for(i);
    next.ask_for(i + 1);
    const auto* value = values.key + i * values.key_row;
    // Beyond the last key the weight is 0.
    const auto* other = i + 1 < values.n ? value + values.key_row : value;
    Shorts pairs[kVectors];
    HWY_UNROLL(2)
    for (int g = 0; g < kGroups; ++g) {
      const auto column = c + g * kNumbersOfPairs;
      const auto first = load_shorts(value, column, value_dim);
      const auto second = load_shorts(other, column, value_dim);
      pairs[2 * g] = hn::InterleaveLower(shorts, first, second);
      pairs[2 * g + 1] = hn::InterleaveUpper(shorts, first, second);
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      int32_t pair = 0;
      std::memcpy(&pair, weights + r * kKeyBlock + i, sizeof(pair));
      const auto weight = hn::BitCast(shorts, hn::Set(integers, pair));
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = add_products_of_integers(weight, pairs[v], sum[r][v]);
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    const auto scale = hn::Set(d, memory.weight_scale[first_row + r]);
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      auto* to = output + r * output_row + v * N;
      const auto part = hn::ConvertTo(d, sum[r][v]);
      store(hn::MulAdd(part, scale, load(d, to)), d, to);
    }
  }
}

/// Adds the values of `range` by their weights.
inline void add_int8_values_by_pairs(
    const Int8Tokens& values,
    const Range& range,
    const NextRows& next,
    const RowMemory<float>& memory) {
  // Their sums stay in registers.
  constexpr int kMaxRows = 4;
  constexpr int kMaxGroups = 2;
  const auto& own = memory.int8;
  const auto E = memory.output_row;
  read_scales(values, range.s, range.n, own.scales);
  for (int64_t r = 0; r < range.rows; ++r) {
    round_weights(memory.scores + r * kKeyBlock, r, own);
  }
  const RowKeys<int8_t> from{values.rows.at(range.s), values.rows.row, range.n};
  int64_t width = 0;
  for (int64_t c = 0; c < E; c += width) {
    const auto groups =
        std::min<int64_t>((E - c) / kNumbersOfPairs, kMaxGroups);
    width = groups * kNumbersOfPairs;
    const auto of_columns = next.part(c, c + width, E);
    for (int64_t r = 0; r < range.rows; r += kMaxRows) {
      const auto rows = std::min<int64_t>(range.rows - r, kMaxRows);
      with_constant<kMaxRows>(static_cast<int>(rows), [&](auto count) {
        constexpr int kRows = decltype(count)::value;
        const auto multiply = groups == kMaxGroups
            ? multiply_int8_values<kRows, kMaxGroups>
            : multiply_int8_values<kRows, 1>;
        multiply(
            own,
            r,
            from,
            c,
            values.size,
            of_columns.part(r, r + rows, range.rows),
            memory.output + r * E + c,
            E);
      });
    }
  }
}

#endif

/// Packs the query of row `row` for products of integers. Returns false where
/// there are none.
inline bool start_int8_row(
    const AttentionArguments<float>& a,
    const float* query,
    float scale,
    int64_t row,
    const RowMemory<float>& memory) {
#if HWY_TARGET == HWY_AVX3
  if (multiplies_integer_pairs()) {
    round_query(query, a.head_dim, scale, row, memory.int8);
    return true;
  }
#endif
  (void)a;
  (void)query;
  (void)scale;
  (void)row;
  (void)memory;
  return false;
}

/// Computes the scores of rows and the keys of `range`.
inline void multiply_int8_keys(
    const AttentionArguments<float>& a,
    const Head<float>& head,
    const Range& range,
    bool prefetches,
    const RowMemory<float>& memory) {
  const auto keys = int8_keys_of(a, head);
#if HWY_TARGET == HWY_AVX3
  if (multiplies_integer_pairs()) {
    const auto values = int8_values_of(a, head);
    multiply_int8_keys_by_pairs(keys, values, range, prefetches, memory);
    return;
  }
#endif
  (void)prefetches;
  const auto D = round_up_to_lanes<float>(a.head_dim);
  fill(memory.key, range.n * D, 0.0F);
  unpack_int8(
      keys.rows.at(range.s),
      keys.rows.row,
      range.n,
      a.head_dim,
      keys.scale,
      memory.key,
      D);
  const RowKeys<float> unpacked{memory.key, D, range.n};
  if (a.same_bits) {
    // The memory of values is free: they are unpacked later.
    multiply_scores_in_order<Product<Start::kZero>>(
        RowProduct<float, float>{
            memory.query, D, range.rows, unpacked, a.head_dim},
        memory.value,
        memory.scores);
    return;
  }
  multiply_scores_of_rows<AddProduct>(
      memory.query, range.rows, unpacked, D, memory.scores);
}

/// Adds the values of `range` by their weights.
inline void add_int8_values(
    const AttentionArguments<float>& a,
    const Head<float>& head,
    const Range& range,
    bool prefetches,
    bool nan_safe,
    const RowMemory<float>& memory) {
  const auto values = int8_values_of(a, head);
#if HWY_TARGET == HWY_AVX3
  if (multiplies_integer_pairs()) {
    const auto keys = int8_keys_of(a, head);
    add_int8_values_by_pairs(
        values, range, keys.next(range.s_end(), prefetches), memory);
    return;
  }
#endif
  (void)prefetches;
  const auto E = memory.output_row;
  fill(memory.value, range.n * E, 0.0F);
  unpack_int8(
      values.rows.at(range.s),
      values.rows.row,
      range.n,
      a.value_dim,
      values.scale,
      memory.value,
      E);
  const auto multiply = nan_safe
      ? multiply_features<
            Product<Start::kLoad, Skip::kZeroBroadcast>,
            float,
            float>
      : multiply_features<Product<Start::kLoad>, float, float>;
  multiply(
      memory.scores,
      kKeyBlock,
      range.rows,
      memory.value,
      E,
      range.n,
      memory.output,
      E,
      NextRows{});
}

/// Puts the columns of the output in order.
inline void finish_int8_rows(
    const Range& range,
    const RowMemory<float>& memory) {
#if HWY_TARGET == HWY_AVX3
  if (multiplies_integer_pairs()) {
    order_columns(memory.output, range.rows * memory.output_row);
  }
#else
  (void)range;
  (void)memory;
#endif
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
