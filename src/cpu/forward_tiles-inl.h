// The forward pass over tiles of scores, by an online softmax.

#if defined(TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_amx-inl.h>
#include <cpu/forward_memory-inl.h>
#include <cpu/forward_plan-inl.h>
#include <cpu/forward_weights-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Computes the scores (n, width) of one tile of queries and the keys of
/// `block` that are in `range`, and their maximum. `cut`: the products are not
/// yet the scores.
template <int kVectors, typename X, typename T>
HWY_INLINE void compute_scores(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    const Range& range,
    const Added<T>& added,
    bool cut,
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto multiply = [&](auto product, T* maximum) {
    const auto multiply_by = [&](auto form, int64_t head_dim) {
      multiply_scores<decltype(form), kVectors>(
          Broadcast<T>{
              block.key_at(range.s), block.key_row, 1, block.key_ahead},
          range.n,
          tile.query,
          tile.row,
          head_dim,
          memory.scores,
          Lanes<T>{nullptr, maximum, head.rule.scale});
    };
    if constexpr (kHasPairs<X>) {
      if (block.pairs) {
        multiply_by(
            PairProduct<decltype(product), /*kFactor=*/true>(),
            num_pairs(a.head_dim));
        return;
      }
    }
    multiply_by(product, a.head_dim);
  };
  if (!cut) {
    multiply(Product<Start::kZero, Skip::kNothing, true>(), tile.maximum);
    return;
  }
  if (added.data == memory.scores) {
    multiply(Product<Start::kAddLast, Skip::kNothing, true>(), tile.maximum);
    return;
  }
  multiply(Product<Start::kZero>(), nullptr);
  transform_scores<T>(head.rule, range.n * kWidth, memory.scores, nullptr);
  place_scores<kVectors>(
      head.rule, head.visibility, range, added, memory.scores, tile.maximum);
}

/// Scales the output and adds the values by their weights.
template <int kVectors, bool kPairs, typename X, typename T>
void add_values(
    const AttentionArguments<X>& a,
    const KeyBlock<T>& block,
    const Range& range,
    bool nan_safe,
    QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  const auto multiply = [&](auto product) {
    multiply_output<decltype(product), kVectors>(
        Broadcast<T>{
            block.value_at(range.s), 1, block.value_row, block.value_ahead},
        a.value_dim,
        memory.scores,
        kPairs ? num_pairs(range.n) : range.n,
        tile.output,
        tile.row,
        memory.scale);
  };
  const auto multiply_as = [&](auto product) {
    using P = decltype(product);
    multiply(std::conditional_t<kPairs, PairProduct<P>, P>());
  };
  if (nan_safe) {
    tile.started ? multiply_as(Product<Start::kScale, Skip::kZeroVector>())
                 : multiply_as(Product<Start::kZero, Skip::kZeroVector>());
  } else {
    tile.started ? multiply_as(Product<Start::kScale>())
                 : multiply_as(Product<Start::kZero>());
  }
  tile.started = true;
}

/// Attends from one tile of queries to one block of keys.
///
///   reads   tile.query (D, width), block.key (n, D), block.value (n, E)
///   writes  tile.output (E, width), tile.maximum and tile.sum (width)
///
///   1. scores (n, width) and their maximum
///   2. weights exp(score - maximum), their sum, and the scale of earlier sums
///   3. output += value^T weights
template <int kVectors, typename X, typename T>
void attend(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool nan_safe,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  // Only the keys that some of the queries see; dropout counts four at a time.
  const auto& visibility = head.visibility;
  Range range{tile.first, tile.rows};
  range.s = std::max(block.begin, visibility.first(range.t) / 4 * 4);
  range.n = std::min(block.end, visibility.end(range.t_end() - 1)) - range.s;
  // If nothing else changes the scores, the product adds the bias itself.
  auto added_memory = memory.added;
  if (visibility.tile(range) == Tile::kFull && head.rule.linear &&
      !head.rule.adds && !nan_safe && !block.pairs) {
    added_memory.tile = memory.scores;
  }
  tile.map.trim(range);
  const auto verdict = visibility.tile(range);
  if (range.n <= 0 || verdict == Tile::kSkipped) {
    return;
  }
  const auto added = tile.map.changes(range.s, range.s_end())
      ? added_to_tile(a, head, range, kWidth, added_memory)
      : Added<T>();
  if (added.hides_all) {
    return;
  }

  // 1.
  std::memcpy(memory.previous, tile.maximum, kWidth * sizeof(T));
  const bool cut = verdict == Tile::kPartial || added.data != nullptr ||
      !head.rule.linear || head.rule.adds || nan_safe;
  compute_scores<kVectors>(a, head, block, range, added, cut, tile, memory);

  // 2. and 3.
  const auto weigh_and_multiply = [&](auto pairs) {
    constexpr bool kPairs = decltype(pairs)::value;
    weigh<kVectors, kPairs>(a, head, range, cut, tile, memory);
    add_values<kVectors, kPairs>(a, block, range, nan_safe, tile, memory);
  };
  if constexpr (kHasPairs<X>) {
    if (block.pairs) {
      weigh_and_multiply(std::true_type());
      return;
    }
  }
  weigh_and_multiply(std::false_type());
}

/// Calls `attend` in steps down a causal diagonal: keys that the first vector
/// of queries does not see are left to the others.
template <int kVectors, typename X, typename T>
void attend_in_steps(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool nan_safe,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int N = kLanes<T>;
  // Shorter steps cost more than they save.
  if constexpr (kVectors > 1 && N >= 16) {
    const auto& visibility = head.visibility;
    const auto seen = (visibility.end(tile.first + N - 1) + 3) / 4 * 4;
    const auto end =
        std::min(block.end, visibility.end(tile.first + tile.rows - 1));
    if (seen < end) {
      auto before = block;
      before.end = std::max(seen, block.begin);
      attend<kVectors>(a, head, before, nan_safe, tile, memory);
      if (tile.started) {
        auto others = tile;
        others.first += N;
        others.rows -= N;
        --others.vectors;
        others.query += N;
        others.output += N;
        others.maximum += N;
        others.sum += N;
        attend_in_steps<kVectors - 1>(
            a, head, block.from(before.end), nan_safe, others, memory);
        return;
      }
    }
  }
  attend<kVectors>(a, head, block, nan_safe, tile, memory);
}

template <typename X, typename T>
void start_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    bool pairs,
    int64_t first,
    int64_t rows,
    QueryTile<T>& tile) {
  constexpr int N = kLanes<T>;
  tile.first = first;
  tile.rows = rows;
  tile.vectors = static_cast<int>((tile.rows + N - 1) / N);
  tile.row = tile.width();
  tile.started = false;
  pack_transposed(
      head.rows_of(a.query),
      first,
      tile.rows,
      a.head_dim,
      // Scaled numbers may not fit bfloat16: with pairs the scores are scaled.
      pairs ? T(1) : head.rule.scale,
      tile.query,
      tile.width());
  if constexpr (kHasPairs<X>) {
    if (pairs) {
      pair_rows(tile.query, a.head_dim, tile.width(), tile.query);
    }
  }
  fill(tile.maximum, tile.width(), -kInfinity<T>);
}

/// Adds the sinks of the heads to the statistics of the rows that see a key,
/// and multiplies `scale` (width) by the factors of their sums.
template <typename T>
void add_sinks_to_tile(
    const T* sinks,
    int64_t heads,
    QueryTile<T>& tile,
    T* scale) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (tile.maximum[r] != -kInfinity<T> || std::isnan(tile.sum[r])) {
      const auto sink = sinks[(tile.first + r) % heads];
      scale[r] *= add_sink(sink, tile.maximum[r], tile.sum[r]);
    }
  }
}

/// Divides by the sum and stores. Returns false, and stores nothing, if NaN may
/// have come from hidden keys.
template <typename X, typename Y, typename T>
bool finish_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    bool nan_safe,
    const ForwardResult<Y>& result,
    QueryTile<T>& tile,
    T* scale) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto width = tile.width();
  if (!tile.started) {
    fill(tile.output, a.value_dim * width, T(0));
    fill(tile.sum, width, T(0));
  }
  // Dropout may have removed non-finite numbers from the output, not the sum.
  if (!nan_safe &&
      !(all_finite(tile.output, a.value_dim * width) &&
        all_finite(tile.sum, width))) {
    return false;
  }
  fill(scale, width, static_cast<T>(dropout_of(a).scale()));
  if (result.sinks != nullptr) {
    add_sinks_to_tile(result.sinks + head.h, head.heads(), tile, scale);
  }
  // A sum of NaN may have any maximum.
  const auto sees_none = [&](int64_t i) {
    const auto sum = load(d, tile.sum + i);
    const auto maximum = load(d, tile.maximum + i);
    return hn::And(
        hn::Eq(maximum, hn::Set(d, -kInfinity<T>)), hn::Eq(sum, sum));
  };
  for (int64_t i = 0; i < width; i += N) {
    store(
        hn::IfThenZeroElse(
            sees_none(i), hn::Div(load(d, scale + i), load(d, tile.sum + i))),
        d,
        scale + i);
  }
  unpack_transposed(
      tile.output,
      width,
      tile.rows,
      a.value_dim,
      scale,
      head.rows_of(result.output),
      tile.first);
  if (result.statistics.sum != nullptr) {
    for (int64_t i = 0; i < width; i += N) {
      const auto none = sees_none(i);
      const auto clear = [&](T* x) {
        store(hn::IfThenZeroElse(none, load(d, x)), d, x);
      };
      clear(tile.sum + i);
      clear(tile.maximum + i);
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      const auto row = head.row_index(tile.first + r, a.num_queries);
      result.statistics.maximum[row] = tile.maximum[r];
      result.statistics.sum[row] = tile.sum[r];
    }
  }
  return true;
}

/// Attends from the tiles of a task, rows from `range.t` on of a head or of
/// several interleaved heads, to the keys of `range`.
///
///   reads   query (heads, T, D), key (S, D), value (S, E)
///   writes  output (heads, T, E), statistics (heads, T)
///
///   1. The queries are packed as tiles (D, width).
///   2. For each block of keys: all tiles attend to it.
///   3. The sums are divided and stored. If NaN may have come from hidden keys,
///      all steps run again, NaN-safe.
template <typename X, typename Y, typename T>
void attend_tiles(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    ForwardMemory<T>& memory,
    bool nan_safe = false) {
  const bool pairs = multiplies_pairs<X>();

  // 1.
  int tiles = 0;
  for (auto t = range.t; t < range.t_end(); t += kMaxTileQueries<T>) {
    const auto rows = std::min<int64_t>(kMaxTileQueries<T>, range.t_end() - t);
    start_tile(a, head, pairs, t, rows, memory.tiles[tiles++]);
  }

  // 2.
  const auto& visibility = head.visibility;
  const auto begin = std::max(range.s, first_step(visibility, range.t));
  const auto end = std::min(range.s_end(), visibility.end(range.t_end() - 1));
  for (int i = 0; i < tiles; ++i) {
    auto& tile = memory.tiles[i];
    head.collect(Range{tile.first, tile.rows, begin, end - begin}, tile.map);
  }
  bool done = false;
  if constexpr (kHasTiles<X>) {
    if (forward_goes_by_tiles(a)) {
      attend_keys_by_tiles(a, head, begin, end, nan_safe, tiles, memory);
      done = true;
    }
  }
  for (int64_t s = begin, s_end = 0; !done && s < end; s = s_end) {
    s_end = step_end(s, kKeyBlock, end);
    if (!any_tile_sees(memory, tiles, s, s_end)) {
      continue;
    }
    const auto block = block_of(a, head, plan, pairs, s, s_end, memory);
    for (int i = 0; i < tiles; ++i) {
      with_constant<kMaxVectors>(memory.tiles[i].vectors, [&](auto vectors) {
        attend_in_steps<decltype(vectors)::value>(
            a, head, block, nan_safe, memory.tiles[i], memory);
      });
    }
  }

  // 3.
  bool finished = true;
  for (int i = 0; i < tiles; ++i) {
    finished =
        finish_tile(a, head, nan_safe, result, memory.tiles[i], memory.scale) &&
        finished;
  }
  if (!finished) {
    attend_tiles(a, plan, head, range, result, memory, true);
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
