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
    const QueryTile<T>& tile) {
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
          tile.scores,
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
  if (added.data == tile.scores) {
    multiply(Product<Start::kAddLast, Skip::kNothing, true>(), tile.maximum);
    return;
  }
  multiply(Product<Start::kZero>(), nullptr);
  transform_scores<T>(head.rule, range.n * kWidth, tile.scores, nullptr);
  place_scores<kVectors>(
      head.rule, head.visibility, range, added, tile.scores, tile.maximum);
}

/// Adds the values by their weights to the output, which begins with `start`.
template <int kVectors, bool kPairs, typename X, typename T>
void add_values(
    const AttentionArguments<X>& a,
    const KeyBlock<T>& block,
    const Range& range,
    bool nan_safe,
    Start start,
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  const auto multiply = [&](auto product) {
    multiply_output<decltype(product), kVectors>(
        Broadcast<T>{
            block.value_at(range.s), 1, block.value_row, block.value_ahead},
        a.value_dim,
        tile.scores,
        kPairs ? num_pairs(range.n) : range.n,
        tile.output,
        tile.row,
        memory.scale);
  };
  const auto multiply_as = [&](auto product) {
    using P = decltype(product);
    multiply(std::conditional_t<kPairs, PairProduct<P>, P>());
  };
  const auto multiply_from = [&](auto from) {
    constexpr auto kStart = decltype(from)::value;
    nan_safe ? multiply_as(Product<kStart, Skip::kZeroVector>())
             : multiply_as(Product<kStart>());
  };
  switch (start) {
    case Start::kZero:
      multiply_from(std::integral_constant<Start, Start::kZero>());
      break;
    case Start::kScale:
      multiply_from(std::integral_constant<Start, Start::kScale>());
      break;
    default:
      multiply_from(std::integral_constant<Start, Start::kLoad>());
  }
}

/// The keys of a block whose scores are those of a tile.
struct ScoredKeys {
  Range range;
  /// Some scores may be of hidden keys.
  bool cut = false;
  /// No scores were computed if no key is seen.
  bool any = false;
};

/// Computes the scores (n, width) of one tile of queries and the keys of a
/// block that some of them see, and their maximum.
template <int kVectors, typename X, typename T>
ScoredKeys score_keys(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool nan_safe,
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  // Dropout counts four keys at a time.
  const auto& visibility = head.visibility;
  Range range{tile.first, tile.rows};
  range.s = std::max(block.begin, visibility.first(range.t) / 4 * 4);
  range.n = std::min(block.end, visibility.end(range.t_end() - 1)) - range.s;
  // If nothing else changes the scores, the product adds the bias itself.
  auto added_memory = memory.added;
  if (visibility.tile(range) == Tile::kFull && head.rule.linear &&
      !head.rule.adds && !nan_safe && !block.pairs) {
    added_memory.tile = tile.scores;
  }
  tile.map.trim(range);
  const auto verdict = visibility.tile(range);
  if (range.n <= 0 || verdict == Tile::kSkipped) {
    return {};
  }
  const auto added = tile.map.changes(range.s, range.s_end())
      ? added_to_tile(a, head, range, kWidth, added_memory)
      : Added<T>();
  if (added.hides_all) {
    return {};
  }
  const bool cut = verdict == Tile::kPartial || added.data != nullptr ||
      !head.rule.linear || head.rule.adds || nan_safe;
  compute_scores<kVectors>(a, head, block, range, added, cut, tile);
  return {range, cut, true};
}

/// Returns the other queries of a tile, without the first vector.
template <typename T>
QueryTile<T> without_first_vector(const QueryTile<T>& tile) {
  constexpr int N = kLanes<T>;
  auto others = tile;
  others.first += N;
  others.rows -= N;
  --others.vectors;
  others.query += N;
  others.output += N;
  others.maximum += N;
  others.sum += N;
  return others;
}

/// Attends from one tile of queries to one block of keys.
///
///   reads   tile.query (D, width), block.key (n, D), block.value (n, E)
///   writes  tile.output (E, width), tile.maximum and tile.sum (width)
///
///   1. scores (n, width) and their maximum
///   2. weights exp(score - maximum), their sum, and the scale of earlier sums
///   3. output += value^T weights
///
/// Down a causal diagonal this goes in two steps: keys that the first vector of
/// queries does not see are left to the others. The maximum is of both steps,
/// so that results are those of one.
template <int kVectors, bool kPairs, typename X, typename T>
void attend(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool nan_safe,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int N = kLanes<T>;
  constexpr int64_t kWidth = kVectors * N;
  // Shorter steps cost more than they save.
  constexpr bool kSteps = kVectors == 2 && N >= 16;
  constexpr int kOthers = kSteps ? kVectors - 1 : kVectors;

  // 1.
  std::memcpy(memory.previous, tile.maximum, kWidth * sizeof(T));
  auto before = block;
  ScoredKeys keys;
  ScoredKeys last_keys;
  QueryTile<T> others;
  if constexpr (kSteps) {
    const auto& visibility = head.visibility;
    const auto seen = (visibility.end(tile.first + N - 1) + 3) / 4 * 4;
    const auto end =
        std::min(block.end, visibility.end(tile.first + tile.rows - 1));
    before.end = std::clamp(seen, block.begin, std::max(block.begin, end));
    if (before.begin < before.end && before.end < end) {
      keys = score_keys<kVectors>(a, head, before, nan_safe, tile, memory);
    }
    if (keys.any) {
      others = without_first_vector(tile);
      others.scores += (keys.range.n + 3) / 4 * 4 * kWidth;
      last_keys = score_keys<kOthers>(
          a, head, block.from(before.end), nan_safe, others, memory);
    }
  }
  if (!keys.any) {
    keys = score_keys<kVectors>(a, head, block, nan_safe, tile, memory);
  }
  if (!keys.any) {
    return;
  }

  // 2.
  scale_sums<kVectors>(tile, memory);
  weigh<kVectors, kPairs>(a, head, keys.range, keys.cut, tile);
  if (last_keys.any) {
    weigh<kOthers, kPairs>(a, head, last_keys.range, last_keys.cut, others);
  }

  // 3.
  add_values<kVectors, kPairs>(
      a,
      block,
      keys.range,
      nan_safe,
      tile.started ? Start::kScale : Start::kZero,
      tile,
      memory);
  if (last_keys.any) {
    add_values<kOthers, kPairs>(
        a, block, last_keys.range, nan_safe, Start::kLoad, others, memory);
  }
  tile.started = true;
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
  tile.has_before = false;
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

/// Ends a part of the keys: adds its sums to those of the parts before.
template <typename T>
void end_part(int64_t value_dim, QueryTile<T>& tile) {
  constexpr int N = kLanes<T>;
  if (!tile.started || tile.before.output == nullptr) {
    return;
  }
  auto& before = tile.before;
  if (tile.has_before) {
    const auto width = tile.width();
    for (int64_t i = 0; i < width; i += N) {
      const Tag<T> d;
      const Addition<T> addition(
          load(d, before.maximum + i), load(d, tile.maximum + i));
      store(addition.maximum, d, before.maximum + i);
      addition.add(tile.sum + i, before.sum + i);
      for (int64_t e = 0; e < value_dim; ++e) {
        addition.add(
            tile.output + e * width + i, before.output + e * width + i);
      }
    }
  } else {
    tile.swap_with_before();
    tile.has_before = true;
  }
  tile.started = false;
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
  if (tile.has_before) {
    tile.swap_with_before();
    tile.has_before = false;
    tile.started = true;
  }
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
  fill(
      scale,
      width,
      result.is_part ? T(1) : static_cast<T>(dropout_of(a).scale()));
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
  for (int64_t i = 0; i < width && !result.is_part; i += N) {
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

/// Attends from the tiles of a task to keys [begin, end) of one part.
template <typename X, typename T>
void attend_keys(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    int64_t begin,
    int64_t end,
    bool nan_safe,
    int tiles,
    ForwardMemory<T>& memory) {
  if constexpr (kHasTiles<X>) {
    if (forward_goes_by_tiles(a)) {
      attend_keys_by_tiles(a, head, begin, end, nan_safe, tiles, memory);
      return;
    }
  }
  const bool pairs = multiplies_pairs<X>();
  for (int64_t s = begin, s_end = 0; s < end; s = s_end) {
    s_end = step_end(s, kKeyBlock, end);
    if (!any_tile_sees(memory, tiles, s, s_end)) {
      continue;
    }
    const auto block = block_of(a, head, plan, pairs, s, s_end, memory);
    for (int i = 0; i < tiles; ++i) {
      with_constant<kMaxVectors>(memory.tiles[i].vectors, [&](auto vectors) {
        constexpr int kVectors = decltype(vectors)::value;
        auto& tile = memory.tiles[i];
        if constexpr (kHasPairs<X>) {
          if (pairs) {
            attend<kVectors, true>(a, head, block, nan_safe, tile, memory);
            return;
          }
        }
        attend<kVectors, false>(a, head, block, nan_safe, tile, memory);
      });
    }
  }
}

/// Attends from the tiles of a task, rows from `range.t` on of a head or of
/// several interleaved heads, to the keys of `range`.
///
///   reads   query (heads, T, D), key (S, D), value (S, E)
///   writes  output (heads, T, E), statistics (heads, T)
///
///   1. The queries are packed as tiles (D, width).
///   2. For each block of keys: all tiles attend to it. The sums of each part
///      of the keys are added to those of the parts before.
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
  for_each_part(begin, end, [&](int64_t part_begin, int64_t part_end) {
    attend_keys(a, plan, head, part_begin, part_end, nan_safe, tiles, memory);
    for (int i = 0; i < tiles; ++i) {
      end_part(a.value_dim, memory.tiles[i]);
    }
  });

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
