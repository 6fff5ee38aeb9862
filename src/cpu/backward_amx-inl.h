// The backward pass by the tiles of AMX: several tiles of queries at once, so
// that the gradients of keys and values seldom leave the tiles for memory.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_AMX_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_AMX_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_AMX_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_AMX_INL_H_
#endif

#include <cpu/amx-inl.h>
#include <cpu/backward_amx_weights-inl.h>
#include <cpu/backward_memory-inl.h>
#include <cpu/backward_tile-inl.h>
#include <cpu/dropout-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// Returns the memory of tile `i` of `m`.
template <typename X, typename T>
BackwardMemory<T> part_of(
    const AttentionArguments<X>& a,
    int64_t i,
    const BackwardMemory<T>& m) {
  constexpr int64_t W = kMaxTileQueries<T>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  auto part = m;
  part.query_lanes += i * W * lane_rows(a.head_dim);
  part.grad_output_lanes += i * W * lane_rows(a.value_dim);
  part.query_row_pairs += i * W / 2 * D;
  part.grad_output_row_pairs += i * W / 2 * E;
  part.maximum += i * W;
  part.inverse_sum += i * W;
  part.delta += i * W;
  if (part.distances != nullptr) {
    part.distances += i * W;
  }
  return part;
}

/// Packs keys as lanes, for the gradient of query.
template <typename X, typename T>
void pack_key_lanes(
    const X* key,
    int64_t key_row,
    int64_t n,
    int64_t head_dim,
    BackwardMemory<T>& m) {
  m.num_unusual_keys = 0;
  if (!m.finite_keys) {
    m.num_unusual_keys = copy_finite_rows(
        key, key_row, n, head_dim, m.finite_keys_copy, m.unusual_keys);
    key = m.finite_keys_copy;
    key_row = head_dim;
  }
  transpose_rows(key, key_row, n, head_dim, m.key_lanes, m.key_lanes_row);
}

/// Sets x[i] to 0 where it is not finite.
template <typename T>
HWY_INLINE void clear_unusual(T* x, int64_t n) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const auto y = load(d, x + i);
    const auto zero = hn::Mul(y, hn::Zero(d));
    store(hn::IfThenElseZero(hn::Eq(zero, hn::Zero(d)), y), d, x + i);
  }
}

/// Packs a tile of queries in whole AMX tiles; rows that are summed up have 0
/// for non-finite numbers. Returns whether queries, gradients and softmax
/// statistics are finite.
template <typename X, typename T>
bool load_whole_tile(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    int64_t t,
    int64_t rows,
    BackwardMemory<T>& part) {
  constexpr int64_t W = kMaxTileQueries<T>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const bool finite = load_tile<kMaxVectors>(a, gradients, head, t, rows, part);
  if (!finite) {
    clear_unusual(part.query_rows, rows * D);
    clear_unusual(part.grad_output_rows, rows * E);
    pair_rows(part.query_rows, rows, D, part.query_row_pairs);
    pair_rows(part.grad_output_rows, rows, E, part.grad_output_row_pairs);
  }
  const auto fill_rows = [](T* x, int64_t row, int64_t first, int64_t end) {
    fill(x + first * row, (end - first) * row, T(0));
  };
  fill_rows(
      part.query_lanes,
      W,
      num_pairs(a.head_dim),
      round_up_to<kTileDepth>(a.head_dim) / 2);
  fill_rows(
      part.grad_output_lanes,
      W,
      num_pairs(a.value_dim),
      round_up_to<kTileDepth>(a.value_dim) / 2);
  fill_rows(part.query_row_pairs, D, num_pairs(rows), W / 2);
  fill_rows(part.grad_output_row_pairs, E, num_pairs(rows), W / 2);
  return finite && all_finite(part.maximum, W) &&
      all_finite(part.inverse_sum, W) && all_finite(part.delta, W);
}

/// Computes weights and gradients of scores of one tile of queries and the keys
/// of `range`. Returns false, and stores nothing, if it sees none of them.
template <typename X, typename T>
bool differentiate_scores(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    const Range& range,
    bool nan_safe,
    const BackwardMemory<T>& part,
    const TileGradients& to) {
  constexpr int kVectors = kMaxVectors;
  constexpr int64_t W = kMaxTileQueries<T>;
  constexpr auto kRowBytes = W * static_cast<int64_t>(sizeof(T));
  const auto& rule = head.rule;
  const auto& visibility = head.visibility;
  if (range.n <= 0 || visibility.tile(range) == Tile::kSkipped) {
    return false;
  }
  const auto added = part.map.changes(range.s, range.s_end())
      ? added_to_tile(a, head, range, W, part.added)
      : Added<T>();
  if (added.hides_all) {
    return false;
  }
  const auto multiply =
      [&](const T* keys, int64_t size, const T* lanes, T* products) {
        const auto padded = round_up_to<kTileDepth>(size);
        multiply_by_tiles<false>(
            TileOperands{
                keys + (range.s - part.first_key) * padded / 2,
                padded * 2,
                lanes,
                kRowBytes,
                padded / kTileDepth},
            round_up_to<kTileRows>(range.n),
            W,
            products,
            W);
      };
  multiply(part.key_columns, a.head_dim, part.query_lanes, part.scores);
  multiply(
      part.value_columns,
      a.value_dim,
      part.grad_output_lanes,
      part.grad_scores);
  const auto dropout = dropout_of(a);
  const bool raw = rule.linear && !rule.adds && added.data == nullptr &&
      rule.scale > 0 && dropout.threshold == 0 && a.num_keys > 1 &&
      gradients.grad_bias.data == nullptr;
  if (raw) {
    place_cut_scores<kVectors>(
        rule, visibility, range, part.scores, static_cast<T*>(nullptr));
    const auto differentiate = nan_safe ? differentiate_raw<kVectors, true, T>
                                        : differentiate_raw<kVectors, false, T>;
    differentiate(range.n, rule.scale, part, to);
    return true;
  }
  scale_all(part.scores, range.n * W, rule.scale);
  scale_all(part.grad_scores, range.n * W, static_cast<T>(dropout.scale()));
  transform_scores(rule, range.n * W, part.scores, part.derivative);
  place_scores<kVectors>(
      rule, visibility, range, added, part.scores, static_cast<T*>(nullptr));
  const auto differentiate = dropout.threshold > 0
      ? differentiate_weights<kVectors, true, true, T>
      : differentiate_weights<kVectors, true, false, T>;
  differentiate(range, head.dropout_index, dropout, part);
  differentiate_rule<kVectors>(a, gradients, head, range, part);
  round_gradients<kVectors>(range.n, part, to);
  return true;
}

/// Adds the share of a block of `keys` keys and the tiles [first, last) of
/// queries to the gradients of query, key and value.
template <typename X, typename T>
void add_gradients_by_tiles(
    const AttentionArguments<X>& a,
    int64_t first_key,
    int64_t keys,
    int64_t first,
    int64_t last,
    const TileGradients& from,
    const BackwardMemory<T>& m) {
  constexpr int64_t W = kMaxTileQueries<T>;
  constexpr auto kHalf = static_cast<int64_t>(sizeof(BFloat16));
  constexpr auto kWhole = static_cast<int64_t>(sizeof(T));
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto key = first_key - m.first_key;
  const auto part = from.from(first * W);
  const auto add_rows =
      [&](const BFloat16* x, const T* row_pairs, int64_t size, T* sums) {
        multiply_by_tiles<true>(
            TileOperands{
                x,
                kWideQueries * kHalf,
                row_pairs + first * W / 2 * size,
                size * kWhole,
                (last - first) * W / kTileDepth},
            round_up_to<kTileRows>(keys),
            size,
            sums + key * size,
            size);
      };
  add_rows(part.weights, m.grad_output_row_pairs, E, m.grad_value);
  add_rows(part.grad_scores, m.query_row_pairs, D, m.grad_key);
  multiply_by_tiles<true>(
      TileOperands{
          m.key_lanes + key,
          m.key_lanes_row * kHalf,
          part.grad_score_pairs,
          kWideQueries * kWhole,
          round_up_to<kTileDepth>(keys) / kTileDepth},
      D,
      (last - first) * W,
      m.grad_query_lanes + first * W,
      kWideQueries);
}

/// Adds x[i] * factor for each x[i] that is not finite to sums[i * step].
template <typename X, typename T>
void add_unusual(const X* x, int64_t n, T factor, T* sums, int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    if (!is_finite(x[i])) {
      sums[i * step] += get(x + i) * factor;
    }
  }
}

/// Adds the products with non-finite values that the tiles skipped; hidden
/// keys, whose factor is 0, stay skipped.
template <typename X, typename T>
void add_unusual_gradients(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    const Range& range,
    const TileGradients& from,
    const BackwardMemory<T>& m) {
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto queries = head.rows_of(a.query);
  const auto grad_outputs = head.rows_of(gradients.grad_output);
  const auto key = range.s - m.first_key;
  for (int64_t i = 0; i < range.n; ++i) {
    for (int64_t r = 0; r < range.rows; ++r) {
      const auto at = i * kWideQueries + r;
      if (const auto weight = get(from.weights + at); weight != 0) {
        add_unusual(
            grad_outputs.at(range.t + r),
            a.value_dim,
            weight,
            m.grad_value + (key + i) * E,
            1);
      }
      if (const auto grad = get(from.grad_scores + at); grad != 0) {
        add_unusual(
            queries.at(range.t + r),
            a.head_dim,
            grad,
            m.grad_key + (key + i) * D,
            1);
      }
    }
  }
  for (int64_t k = 0; k < m.num_unusual_keys; ++k) {
    const auto i = m.unusual_keys[k] - key;
    for (int64_t r = 0; i >= 0 && i < range.n && r < range.rows; ++r) {
      const auto grad = get(from.grad_scores + i * kWideQueries + r);
      if (grad != 0) {
        add_unusual(
            head.key.at(range.s + i),
            a.head_dim,
            grad,
            m.grad_query_lanes + r,
            kWideQueries);
      }
    }
  }
}

/// Computes `differentiate_tile` for up to kWideQueries queries and the packed
/// keys of `chunk`.
///
///   reads   query (rows, D), output and its gradient (rows, E), the rows'
///           statistics; the keys (n, D) and values (n, E) packed in m
///   writes  adds to m.grad_key (n, D), m.grad_value (n, E), and the gradients
///           of the head's query (rows, D), slope and bias (rows, n)
///
///   1. The tiles are packed, and the sums set to 0.
///   2. For each block of keys: weights and gradients of scores of each tile,
///      then the three products of all tiles together; if NaN-safe, also the
///      products with values that are not finite.
///   3. The gradient of the query is added to the gradient of its head.
template <typename X, typename T>
void differentiate_wide_tile(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    const Range& chunk,
    const HeadGradients<T>& to_add,
    BackwardMemory<T>& m) {
  constexpr int64_t W = kMaxTileQueries<T>;
  constexpr int64_t kTiles = kWideQueries / W;
  const auto& visibility = head.visibility;
  const auto tile_of = [&](int64_t i) {
    return Range{
        chunk.t + i * W, std::min(W, chunk.rows - i * W), chunk.s, chunk.n};
  };

  // 1.
  const auto tiles = (chunk.rows + W - 1) / W;
  BackwardMemory<T> parts[kTiles];
  bool nan_safe = !m.finite_keys;
  for (int64_t i = 0; i < tiles; ++i) {
    const auto tile = tile_of(i);
    parts[i] = part_of(a, i, m);
    nan_safe |=
        !load_whole_tile(a, gradients, head, tile.t, tile.rows, parts[i]);
  }
  if (to_add.slopes != nullptr) {
    fill(m.distances, kWideQueries, T(0));
  }
  fill(
      m.grad_query_lanes,
      round_up_to_lanes<T>(a.head_dim) * kWideQueries,
      T(0));
  const TileGradients scores{
      m.weight_rows, m.grad_score_rows, m.grad_score_pairs};

  // 2.
  const auto end = std::min(chunk.s_end(), visibility.end(chunk.t_end() - 1));
  for (auto block = chunk.s; block < end; block += kTileKeys) {
    const auto s = block +
        std::max<int64_t>(visibility.first(chunk.t) - block, 0) / kTileDepth *
            kTileDepth;
    const auto s_end = std::min(block + kTileKeys, end);
    if (!m.map.sees(s, s_end)) {
      continue;
    }
    const auto padded = round_up_to<kTileDepth>(s_end - s);
    int64_t first = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < tiles && s < s_end; ++i) {
      auto tile = tile_of(i);
      tile.s = s;
      tile.n = std::min(s_end, visibility.end(tile.t_end() - 1)) - s;
      const auto to = scores.from(i * W);
      if (differentiate_scores(
              a, gradients, head, tile, nan_safe, parts[i], to)) {
        first = last == 0 ? i : first;
        last = i + 1;
        clear_beside<T>(tile.n, padded, tile.rows, to);
      } else {
        clear_beside<T>(0, padded, tile.rows, to);
      }
    }
    if (first < last) {
      add_gradients_by_tiles(a, s, s_end - s, first, last, scores, m);
    }
    if (first < last && nan_safe) {
      const Range seen{
          chunk.t + first * W,
          std::min(last * W, chunk.rows) - first * W,
          s,
          s_end - s};
      const auto from = scores.from(first * W);
      auto memory = m;
      memory.grad_query_lanes += first * W;
      add_unusual_gradients(a, gradients, head, seen, from, memory);
    }
  }

  // 3.
  store_tile(a, head, chunk, kWideQueries, to_add, m);
}

#endif // HWY_TARGET == HWY_AVX3

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
