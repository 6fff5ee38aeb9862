// The forward pass by the tiles of AMX: `attend_tiles` with other products,
// next to which exponentials take most of the time.

#if defined(TORCH_ATTENTION_CPU_FORWARD_AMX_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_AMX_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_AMX_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_AMX_INL_H_
#endif

#include <cpu/amx-inl.h>
#include <cpu/forward_amx_weights-inl.h>
#include <cpu/forward_memory-inl.h>
#include <cpu/forward_weights-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// Returns true if tiles of queries are computed by AMX, whose tiles would not
/// be filled by fewer keys.
template <typename X>
bool forward_goes_by_tiles(const AttentionArguments<X>& a) {
  return goes_by_tiles(a) && a.num_keys > kTileRows;
}

/// Keys [begin, end), packed for tiles.
struct TileBlock {
  int64_t begin = 0;
  int64_t end = 0;
  const BFloat16* key = nullptr; // (keys, D padded)
  int64_t key_row = 0;
  const BFloat16* value = nullptr; // (E padded, keys)
  int64_t value_row = 0;
  /// NaN-safe: `value` has 0 for non-finite numbers, and these are the keys
  /// that have some, counted from `begin`.
  const int64_t* unusual = nullptr;
  int64_t num_unusual = 0;
};

template <typename X, typename T>
TileBlock pack_tile_block(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t s,
    int64_t s_end,
    bool nan_safe,
    const ForwardMemory<T>& memory) {
  auto* key = reinterpret_cast<BFloat16*>(memory.key);
  auto* value = reinterpret_cast<BFloat16*>(memory.value);
  const auto D = round_up_to<kTileDepth>(a.head_dim);
  const auto E = a.value_dim;
  TileBlock block{s, s_end, key, D, value, kTileKeys};
  head.key.for_each_piece(
      s, s_end, [&](const X* keys, int64_t first, int64_t n) {
        auto* to = key + (first - s) * D;
        copy_rows(keys, head.key.row, n, a.head_dim, to, D);
      });
  if (nan_safe) {
    block.unusual = memory.unusual;
    head.value.for_each_piece(
        s, s_end, [&](const X* values, int64_t first, int64_t n) {
          auto* unusual = memory.unusual + block.num_unusual;
          const auto count = copy_finite_rows(
              values,
              head.value.row,
              n,
              E,
              memory.finite_values + (first - s) * E,
              unusual);
          for (int64_t i = 0; i < count; ++i) {
            unusual[i] += first - s;
          }
          block.num_unusual += count;
        });
    transpose_rows(memory.finite_values, E, s_end - s, E, value, kTileKeys);
    return block;
  }
  // A piece pads its last rows with zeros, which the next one overwrites.
  head.value.for_each_piece(
      s, s_end, [&](const X* values, int64_t first, int64_t n) {
        transpose_rows(
            values, head.value.row, n, E, value + (first - s), kTileKeys);
      });
  return block;
}

/// Hides the raw scores of keys that a query does not see, and writes the
/// largest of all, times the scale, to `memory.highest`.
template <int kVectors, typename T>
void hide_raw_scores(
    const HeadRule<T>& rule,
    const Visibility& visibility,
    const Range& range,
    const ForwardMemory<T>& memory) {
  const Tag<T> d;
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto [s, n] = place_cut_scores<kVectors>(
      rule, visibility, range, memory.scores, memory.highest);
  for (int64_t i = 0; i < kWidth; i += kLanes<T>) {
    auto* at = memory.highest + i;
    store(hn::Mul(load(d, at), hn::Set(d, rule.scale)), d, at);
  }
  take_maximum<kVectors>(
      memory.scores + (s - range.s) * kWidth, n, rule.scale, memory.highest);
}

/// Records which queries see the keys of non-finite values, to `memory.seen`:
/// those whose score, or weight, is not `hidden`.
template <int kVectors, typename T, typename ScoreOf>
void note_seen(
    const TileBlock& block,
    const Range& range,
    const ScoreOf& score_of,
    T hidden,
    const ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  for (int64_t i = 0; i < block.num_unusual; ++i) {
    const auto key = block.begin + block.unusual[i] - range.s;
    const bool within = key >= 0 && key < range.n;
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      // NaN is not hidden.
      memory.seen[i * kWidth + lane] =
          within && !(score_of(key, lane) == hidden);
    }
  }
}

/// Adds the non-finite values that were left out to the queries that see them;
/// any weight gives the same result.
template <int kVectors, typename X, typename T>
void add_unusual_values(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const TileBlock& block,
    const QueryTile<T>& tile,
    const ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  for (int64_t i = 0; i < block.num_unusual; ++i) {
    const auto* value = head.value.at(block.begin + block.unusual[i]);
    for (int64_t e = 0; e < a.value_dim; ++e) {
      if (is_finite(value[e])) {
        continue;
      }
      for (int64_t lane = 0; lane < kWidth; ++lane) {
        if (memory.seen[i * kWidth + lane]) {
          tile.output[e * kWidth + lane] += get(value + e);
        }
      }
    }
  }
}

/// Turns the scores of `range` into weights, as pairs with zeros up to whole
/// steps of a product, and raises the maximum of the rows. `raw`: the scores
/// are not scaled yet. Returns whether earlier sums have to be scaled.
template <int kVectors, typename X, typename T>
bool weigh_scores_by_tiles(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const TileBlock& block,
    const Range& range,
    bool raw,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  bool raised = true;
  if (a.dropout > 0) {
    std::memcpy(memory.previous, tile.maximum, kWidth * sizeof(T));
    take_maximum<kVectors>(memory.highest, 1, T(1), tile.maximum);
    scale_sums<kVectors>(tile, memory);
    weigh<kVectors, /*kPairs=*/true>(a, head, range, /*cut=*/true, tile);
    // Dropped keys count as hidden.
    note_seen<kVectors>(
        block,
        range,
        [&](int64_t key, int64_t lane) {
          const auto* numbers = reinterpret_cast<const BFloat16*>(
              memory.scores + key / 2 * kWidth + lane);
          return get(numbers + key % 2);
        },
        T(0),
        memory);
  } else {
    note_seen<kVectors>(
        block,
        range,
        [&](int64_t key, int64_t lane) {
          return memory.scores[key * kWidth + lane];
        },
        -kInfinity<T>,
        memory);
    raised = raise_maximum<kVectors>(tile, memory);
    raw ? weigh_for_tiles<kVectors, true>(
              tile, range.n, head.rule.scale, raised, memory)
        : weigh_for_tiles<kVectors, false>(tile, range.n, T(1), raised, memory);
  }
  // Pads with zeros, so that values meet no stale numbers.
  const auto keys = round_up_to<kTileDepth>(range.n);
  const auto pairs = num_pairs(range.n);
  fill(memory.scores + pairs * kWidth, (keys / 2 - pairs) * kWidth, T(0));
  return raised;
}

/// Adds the values of `range` by their weights.
template <int kVectors, typename X, typename T>
void add_values_by_tiles(
    const AttentionArguments<X>& a,
    const TileBlock& block,
    const Range& range,
    bool raised,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  constexpr auto kWidthBytes = kWidth * static_cast<int64_t>(sizeof(T));
  const TileOperands values{
      block.value + (range.s - block.begin),
      block.value_row * 2,
      memory.scores,
      kWidthBytes,
      round_up_to<kTileDepth>(range.n) / kTileDepth};
  const auto E = round_up_to<kTileRows>(a.value_dim);
  if (tile.started && raised) {
    scale_lanes<kVectors>(memory.scale, a.value_dim, tile.output);
  }
  tile.started
      ? multiply_by_tiles<true>(values, E, kWidth, tile.output, kWidth)
      : multiply_by_tiles<false>(values, E, kWidth, tile.output, kWidth);
  tile.started = true;
}

/// Attends from one tile of queries to one block of keys.
///
///   reads   tile.query (D / 2, width), pairs; block.key (n, D) and block.value
///           (E, n), bfloat16
///   writes  adds to tile.output (E, width); tile.maximum and tile.sum (width)
///
///   1. Scores (n, width) by the rule, and their maximum for each query.
///   2. Weights, as pairs of bfloat16.
///   3. Their product with values is added to the output, which is scaled first
///      if a maximum was raised.
template <int kVectors, typename X, typename T>
void attend_by_tiles(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const TileBlock& block,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  constexpr auto kWidthBytes = kWidth * static_cast<int64_t>(sizeof(T));
  const auto& visibility = head.visibility;
  const auto& rule = head.rule;
  Range range{tile.first, tile.rows};
  if (!tile.map.sees(block.begin, block.end)) {
    return;
  }
  // Starts at a whole step of the product with values.
  const auto unseen = visibility.first(range.t) - block.begin;
  range.s =
      block.begin + std::max<int64_t>(unseen, 0) / kTileDepth * kTileDepth;
  range.n = std::min(block.end, visibility.end(range.t_end() - 1)) - range.s;
  if (range.n <= 0 || visibility.tile(range) == Tile::kSkipped) {
    return;
  }
  const auto added = tile.map.changes(range.s, range.s_end())
      ? added_to_tile(a, head, range, kWidth, memory.added)
      : Added<T>();
  if (added.hides_all) {
    return;
  }

  // 1.
  const auto first = range.s - block.begin;
  multiply_by_tiles<false>(
      TileOperands{
          block.key + first * block.key_row,
          block.key_row * 2,
          tile.query,
          kWidthBytes,
          block.key_row / kTileDepth},
      round_up_to<kTileRows>(range.n),
      kWidth,
      memory.scores,
      kWidth);
  const bool raw = rule.linear && !rule.adds && added.data == nullptr &&
      rule.scale > 0 && a.dropout == 0;
  fill(memory.highest, kWidth, -kInfinity<T>);
  if (raw) {
    hide_raw_scores<kVectors>(rule, visibility, range, memory);
  } else {
    scale_all(memory.scores, range.n * kWidth, rule.scale);
    transform_scores<T>(rule, range.n * kWidth, memory.scores, nullptr);
    place_scores<kVectors>(
        rule, visibility, range, added, memory.scores, memory.highest);
  }

  // 2.
  const bool raised =
      weigh_scores_by_tiles<kVectors>(a, head, block, range, raw, tile, memory);

  // 3.
  add_values_by_tiles<kVectors>(a, block, range, raised, tile, memory);
  add_unusual_values<kVectors>(a, head, block, tile, memory);
}

/// Attends from the tiles of queries of a task, which `start_tile` packed as
/// pairs, to keys [begin, end). `nan_safe`: NaN-safe, and finite results are
/// the same to the last bit.
template <typename X, typename T>
void attend_keys_by_tiles(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t begin,
    int64_t end,
    bool nan_safe,
    int tiles,
    ForwardMemory<T>& memory) {
  const Tiles configured(true);
  const auto pairs = num_pairs(a.head_dim);
  const auto padded = round_up_to<kTileDepth>(a.head_dim) / 2;
  for (int i = 0; i < tiles; ++i) {
    auto& tile = memory.tiles[i];
    fill(tile.query + pairs * tile.row, (padded - pairs) * tile.row, T(0));
  }
  // Steps of products begin at multiples of their size.
  for (int64_t s = begin / kTileDepth * kTileDepth, s_end = 0; s < end;
       s = s_end) {
    s_end = step_end(s, kTileKeys, end);
    if (!any_tile_sees(memory, tiles, s, s_end)) {
      continue;
    }
    const auto block = pack_tile_block(a, head, s, s_end, nan_safe, memory);
    for (int i = 0; i < tiles; ++i) {
      with_constant<kMaxVectors>(memory.tiles[i].vectors, [&](auto vectors) {
        attend_by_tiles<decltype(vectors)::value>(
            a, head, block, memory.tiles[i], memory);
      });
    }
  }
}

#endif // HWY_TARGET == HWY_AVX3

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
