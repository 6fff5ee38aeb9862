// The scores of rows in the order of a tile's sums, so that they do not depend
// on how many queries there are: a sum goes along head_dim. Keys are on the
// lanes, and their rows are transposed on the way.

#if defined(TORCH_ATTENTION_CPU_FORWARD_ROW_SCORES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_ROW_SCORES_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_ROW_SCORES_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_ROW_SCORES_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_row_memory-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Queries (rows, head_dim) and keys (n, head_dim), numbers or pairs of them.
template <typename X, typename T>
struct RowProduct {
  const T* query;
  int64_t query_row;
  int64_t rows;
  RowKeys<X> keys;
  int64_t head_dim;
};

/// Returns the vector whose lane i is number i % m of row i / m * m, where m
/// numbers have 128 bits.
template <typename D, typename X>
HWY_INLINE hn::VFromD<D> load_blocks(D d, const X* x, int64_t row) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    return load(d, x);
  } else {
    const hn::Half<D> half;
    constexpr auto kRows = static_cast<int64_t>(hn::MaxLanes(half));
    return hn::Combine(
        d, load_blocks(half, x + kRows * row, row), load_blocks(half, x, row));
  }
}

/// The columns that are transposed at once.
template <typename T>
constexpr int64_t kColumns = 16 / sizeof(T);

/// Sets columns[c] to number c of each of as many rows as there are lanes.
template <typename T, typename X>
HWY_INLINE void load_columns(
    const X* x,
    int64_t row,
    Vector<T> (&columns)[kColumns<T>]) {
  const Tag<T> d;
  Vector<T> blocks[kColumns<T>];
  HWY_UNROLL(4)
  for (int64_t i = 0; i < kColumns<T>; ++i) {
    blocks[i] = load_blocks(d, x + i * row, row);
  }
  if constexpr (sizeof(T) == 4) {
    const hn::Repartition<double, Tag<T>> two;
    const auto low = [&](Vector<T> a, Vector<T> b) {
      return hn::BitCast(two, hn::InterleaveLower(d, a, b));
    };
    const auto high = [&](Vector<T> a, Vector<T> b) {
      return hn::BitCast(two, hn::InterleaveUpper(d, a, b));
    };
    const auto low01 = low(blocks[0], blocks[1]);
    const auto low23 = low(blocks[2], blocks[3]);
    const auto high01 = high(blocks[0], blocks[1]);
    const auto high23 = high(blocks[2], blocks[3]);
    columns[0] = hn::BitCast(d, hn::InterleaveLower(two, low01, low23));
    columns[1] = hn::BitCast(d, hn::InterleaveUpper(two, low01, low23));
    columns[2] = hn::BitCast(d, hn::InterleaveLower(two, high01, high23));
    columns[3] = hn::BitCast(d, hn::InterleaveUpper(two, high01, high23));
  } else {
    columns[0] = hn::InterleaveLower(d, blocks[0], blocks[1]);
    columns[1] = hn::InterleaveUpper(d, blocks[0], blocks[1]);
  }
}

/// Computes the scores of kRows queries and kGroups vectors of keys from
/// `first` on.
template <typename P, int kRows, int kGroups, typename X, typename T>
HWY_INLINE void multiply_groups(
    const RowProduct<X, T>& in,
    int64_t first,
    T* scores) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  constexpr int64_t kKeys = kGroups * N;
  const auto* key = in.keys.key + first * in.keys.key_row;
  const bool prefetches = in.keys.values.any() || in.keys.ahead != 0;
  const auto bytes = in.head_dim * static_cast<int64_t>(sizeof(T));
  Vector<T> sum[kGroups][kRows];
  HWY_UNROLL(4)
  for (int g = 0; g < kGroups; ++g) {
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      sum[g][r] = hn::Zero(d);
    }
  }
  int64_t asked = 0;
  for (int64_t c = 0; c < in.head_dim; c += kColumns<T>) {
    // Spread over the columns.
    const auto ask_to =
        prefetches ? kKeys * (c + kColumns<T>) / in.head_dim : 0;
    for (; asked < ask_to; ++asked) {
      in.keys.values.ask_for(first + asked);
      if (in.keys.ahead != 0) {
        prefetch_row(key + (in.keys.ahead + asked) * in.keys.key_row, bytes);
      }
    }
    HWY_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      Vector<T> columns[kColumns<T>];
      load_columns<T>(
          key + g * N * in.keys.key_row + c, in.keys.key_row, columns);
      HWY_UNROLL(4)
      for (int64_t i = 0; i < kColumns<T>; ++i) {
        HWY_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          const auto factor = hn::Set(d, in.query[r * in.query_row + c + i]);
          sum[g][r] = multiply_add<P>(factor, columns[i], sum[g][r]);
        }
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      store(sum[g][r], d, scores + r * kKeyBlock + first + g * N);
    }
  }
}

/// Computes the scores of kRows queries and whole vectors of keys. Returns the
/// number of these keys.
template <typename P, int kRows, typename X, typename T>
HWY_NOINLINE int64_t
multiply_whole_vectors(const RowProduct<X, T>& in, T* scores) {
  constexpr int64_t N = kLanes<T>;
  int64_t i = 0;
  for (; i + 2 * N <= in.keys.n; i += 2 * N) {
    multiply_groups<P, kRows, 2>(in, i, scores);
  }
  if (i + N <= in.keys.n) {
    multiply_groups<P, kRows, 1>(in, i, scores);
    i += N;
  }
  return i;
}

/// The most rows that are multiplied with keys while these are transposed.
constexpr int kMaxRowsInOrder = HWY_TARGET == HWY_EMU128 ? 1 : 4;

/// Sets scores[r][key] = sum over d of query[r][d] * key[key][d], rows of
/// kKeyBlock scores. P multiplies numbers or pairs. `memory`: (head_dim,
/// kKeyBlock).
template <typename P, typename X, typename T>
void multiply_scores_in_order(
    const RowProduct<X, T>& in,
    T* memory,
    T* scores) {
  constexpr int64_t N = kLanes<T>;
  int64_t first = 0;
  if (in.rows <= kMaxRowsInOrder && in.head_dim % kColumns<T> == 0) {
    with_constant<kMaxRowsInOrder>(static_cast<int>(in.rows), [&](auto rows) {
      first = multiply_whole_vectors<P, decltype(rows)::value>(in, scores);
    });
  }
  const auto left = round_up_to_lanes<T>(in.keys.n - first);
  if (left == 0) {
    return;
  }
  pack_transposed(
      Rows<const X>{in.keys.key, in.keys.key_row},
      first,
      in.keys.n - first,
      in.head_dim,
      Unscaled(),
      memory,
      left);
  for (int64_t i = 0; i < left; i += kMaxFeatureVectors * N) {
    const auto vectors = std::min<int64_t>(kMaxFeatureVectors, (left - i) / N);
    with_constant<kMaxFeatureVectors>(
        static_cast<int>(vectors), [&](auto count) {
          constexpr int kVectors = decltype(count)::value;
          product_rows<P, kVectors, rows_for(kVectors), true>(
              0,
              in.rows,
              Broadcast<T>{in.query, in.query_row, 1},
              memory + i,
              left,
              in.head_dim,
              scores + first + i,
              kKeyBlock,
              Lanes<T>{},
              first == 0 ? in.keys.values.part(i, i + kVectors * N, left)
                         : NextRows());
        });
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
