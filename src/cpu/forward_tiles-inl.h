// The pass forward over tiles of scores, by an online softmax.

#if defined(TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_TILES_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/dropout-inl.h>
#include <cpu/forward_plan-inl.h>
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

/// Up to kMaxTileQueries rows of a head, or of several by turns, on the lanes.
template <typename T>
struct QueryTile {
  int64_t first = 0;
  int64_t rows = 0;
  int vectors = 0;
  /// whether `output` and `sum` hold something yet
  bool started = false;
  /// between the rows of `query` and `output`
  int64_t row = 0;
  T* query = nullptr; // (D, width), scaled
  T* output = nullptr; // (E, width), not divided by the sum
  T* maximum = nullptr; // (width), of the scores
  T* sum = nullptr; // (width), of the weights

  int64_t width() const {
    return vectors * kLanes<T>;
  }
};
/// Keys [begin, end) and where they are.
template <typename T>
struct KeyBlock {
  int64_t begin = 0;
  int64_t end = 0;
  const T* key = nullptr;
  const T* value = nullptr;
  int64_t key_row = 0;
  int64_t value_row = 0;
  /// how many keys before they are read they are asked for; 0: not at all
  int64_t ahead = 0;
};
template <typename T>
struct ForwardMemory {
  QueryTile<T> tiles[kMaxTiles];
  T* scores = nullptr; // (kKeyBlock, width), then the weights
  T* previous = nullptr; // (width), maximum before a block of keys
  T* scale = nullptr; // (width)
  AddedMemory<T> added;
  T* key = nullptr; // (kKeyBlock, D padded)
  T* value = nullptr; // (kKeyBlock, E padded)

  template <typename X>
  ForwardMemory(
      Parts& parts,
      const AttentionArguments<X>& a,
      const ForwardPlan& plan) {
    constexpr int64_t W = kMaxTileQueries<T>;
    for (int i = 0; i < plan.tiles_per_task; ++i) {
      tiles[i].query = parts.take<T>(W * a.head_dim);
      tiles[i].output = parts.take<T>(W * a.value_dim);
      tiles[i].maximum = parts.take<T>(W);
      tiles[i].sum = parts.take<T>(W);
    }
    scores = parts.take<T>(kKeyBlock * W);
    previous = parts.take<T>(W);
    scale = parts.take<T>(W);
    if (has_bias_or_mask(a)) {
      added.rows = parts.take<T>(W * kKeyBlock);
      added.tile = parts.take<T>(kKeyBlock * W);
    }
    if (plan.packs_keys) {
      key = parts.take<T>(kKeyBlock * round_up_to_lanes<T>(a.head_dim));
      value = parts.take<T>(kKeyBlock * round_up_to_lanes<T>(a.value_dim));
    }
  }
};

/// Scores become weights exp(score - maximum), dropped ones 0; the sum grows by
/// all, and `scale` takes what was there before to the new maximum.
template <int kVectors, bool kCut, bool kDropout, typename T>
HWY_NOINLINE void weigh_scores(
    const QueryTile<T>& tile,
    const Range& range,
    int64_t head,
    const Dropout& dropout,
    const ForwardMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto s = range.s;
  const auto n = range.n;
  const auto* previous = memory.previous;
  auto* scale = memory.scale;
  auto* scores = memory.scores;
  Vector<T> shift[kVectors];
  Vector<T> sum[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    const auto maximum = load(d, tile.maximum + v * N);
    // Nothing seen yet: any finite number does.
    shift[v] =
        hn::IfThenZeroElse(hn::Eq(maximum, hn::Set(d, -kInfinity<T>)), maximum);
    const auto factor =
        exp<true, T>(hn::Sub(load(d, previous + v * N), shift[v]));
    store(factor, d, scale + v * N);
    sum[v] =
        tile.started ? hn::Mul(factor, load(d, tile.sum + v * N)) : hn::Zero(d);
  }
  if constexpr (!kDropout) {
    for (int64_t i = 0; i < n; ++i) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        auto* at = scores + (i * kVectors + v) * N;
        const auto weight = weight_of<kCut, T>(load(d, at), shift[v]);
        sum[v] = hn::Add(sum[v], weight);
        store(weight, d, at);
      }
    }
  } else {
    for (int64_t i = 0; i < n; i += 4) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const Philox<T> philox(tile.first + v * N, s + i, head, dropout.seed);
        const auto weigh = [&](auto key) {
          constexpr int kKey = decltype(key)::value;
          if (i + kKey < n) {
            auto* at = scores + ((i + kKey) * kVectors + v) * N;
            const auto weight = weight_of<kCut, T>(load(d, at), shift[v]);
            sum[v] = hn::Add(sum[v], weight);
            store(philox.template keep<kKey>(weight, dropout.threshold), d, at);
          }
        };
        weigh(std::integral_constant<int, 0>());
        weigh(std::integral_constant<int, 1>());
        weigh(std::integral_constant<int, 2>());
        weigh(std::integral_constant<int, 3>());
      }
    }
  }
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    store(sum[v], d, tile.sum + v * N);
  }
}

/// The scores (n, width) of one tile of queries and the keys of `block` that
/// are in `range`, and the largest of them. `cut`: not as the product gives
/// them.
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
  const auto* key = block.key + (range.s - block.begin) * block.key_row;
  const auto multiply = [&](auto product, T* maximum) {
    multiply_scores<decltype(product), kVectors>(
        Broadcast<T>{key, block.key_row, 1, block.ahead * block.key_row},
        range.n,
        tile.query,
        tile.row,
        a.head_dim,
        memory.scores,
        maximum);
  };
  if (!cut) {
    multiply(Product<Start::kZero, Skip::kNothing, true>(), tile.maximum);
    return;
  }
  multiply(Product<Start::kZero>(), nullptr);
  bend_scores<T>(head.rule, range.n * kWidth, memory.scores, nullptr);
  place_scores<kVectors>(
      head.rule, head.visibility, range, added, memory.scores, tile.maximum);
}

/// One tile of queries against one block of keys.
///
///   reads   tile.query (D, width), block.key (n, D), block.value (n, E)
///   writes  tile.output (E, width), tile.maximum and tile.sum (width)
///
///   1. scores (n, width) and their maximum
///   2. weights exp(score - maximum), their sum, and the scale of what was
///      there before
///   3. output += value^T weights
template <int kVectors, typename X, typename T>
void attend(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool careful,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  // Only the keys that some of the queries see; dropout counts four at a time.
  const auto& visibility = head.visibility;
  Range range{tile.first, tile.rows};
  range.s = std::max(block.begin, visibility.first(range.t) / 4 * 4);
  range.n = std::min(block.end, visibility.end(range.t_end() - 1)) - range.s;
  const auto verdict = visibility.tile(range);
  if (range.n <= 0 || verdict == Tile::kSkipped) {
    return;
  }
  const auto added = added_to_tile(a, head, range, kWidth, memory.added);
  if (added.hides_all) {
    return;
  }

  // 1.
  std::memcpy(memory.previous, tile.maximum, kWidth * sizeof(T));
  const bool cut = verdict == Tile::kCut || added.data != nullptr ||
      head.rule.bends || head.rule.adds || careful;
  compute_scores<kVectors>(a, head, block, range, added, cut, tile, memory);

  // 2.
  const auto dropout = dropout_of(a);
  const auto weigh = dropout.threshold > 0
      ? (cut ? weigh_scores<kVectors, true, true, T>
             : weigh_scores<kVectors, false, true, T>)
      : (cut ? weigh_scores<kVectors, true, false, T>
             : weigh_scores<kVectors, false, false, T>);
  weigh(tile, range, head.index, dropout, memory);

  // 3.
  using First = Product<Start::kZero>;
  using FirstCareful = Product<Start::kZero, Skip::kZeroVector>;
  using Next = Product<Start::kScale>;
  using NextCareful = Product<Start::kScale, Skip::kZeroVector>;
  const auto multiply = tile.started
      ? (careful ? multiply_output<NextCareful, kVectors, T>
                 : multiply_output<Next, kVectors, T>)
      : (careful ? multiply_output<FirstCareful, kVectors, T>
                 : multiply_output<First, kVectors, T>);
  multiply(
      Broadcast<T>{
          block.value + (range.s - block.begin) * block.value_row,
          1,
          block.value_row,
          block.ahead * block.value_row},
      a.value_dim,
      memory.scores,
      range.n,
      tile.output,
      tile.row,
      memory.scale);
  tile.started = true;
}

/// The same in steps down a causal diagonal: keys that the first vector of
/// queries does not see are for the others alone.
template <int kVectors, typename X, typename T>
void attend_in_steps(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool careful,
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
      attend<kVectors>(a, head, before, careful, tile, memory);
      if (tile.started) {
        auto after = block;
        after.begin = before.end;
        after.key += (after.begin - block.begin) * block.key_row;
        after.value += (after.begin - block.begin) * block.value_row;
        auto others = tile;
        others.first += N;
        others.rows -= N;
        --others.vectors;
        others.query += N;
        others.output += N;
        others.maximum += N;
        others.sum += N;
        attend_in_steps<kVectors - 1>(a, head, after, careful, others, memory);
        return;
      }
    }
  }
  attend<kVectors>(a, head, block, careful, tile, memory);
}

template <typename X, typename T>
void start_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
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
      head.rule.scale,
      tile.query,
      tile.width());
  fill(tile.maximum, tile.width(), -kInfinity<T>);
}

/// Lets the sinks of the heads into the statistics of the rows that see a key,
/// and what they scale their sums by into `scale` (width).
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

/// Divides by the sum and stores. False, and nothing stored, if NaN may have
/// come from what was hidden.
template <typename X, typename Y, typename T>
bool finish_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    bool careful,
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
  if (!careful && !all_finite(tile.output, a.value_dim * width)) {
    return false;
  }
  fill(scale, width, static_cast<T>(dropout_of(a).scale()));
  if (result.sinks != nullptr) {
    add_sinks_to_tile(result.sinks + head.h, head.heads, tile, scale);
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

/// Keys [s, s_end) where they are in memory, or packed.
template <typename X, typename T>
KeyBlock<T> block_of(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const ForwardPlan& plan,
    int64_t s,
    int64_t s_end,
    const ForwardMemory<T>& memory) {
  KeyBlock<T> block;
  block.begin = s;
  block.end = s_end;
  block.key_row = a.key.strides.token;
  block.value_row = a.value.strides.token;
  const auto* key = head.key + s * block.key_row;
  const auto* value = head.value + s * block.value_row;
  if constexpr (std::is_same_v<X, T>) {
    block.key = key;
    block.value = value;
    block.ahead = plan.prefetches ? kKeyBlock : 0;
  }
  if (plan.packs_keys) {
    const auto n = s_end - s;
    const auto D = round_up_to_lanes<T>(a.head_dim);
    const auto E = round_up_to_lanes<T>(a.value_dim);
    pack_rows(key, block.key_row, n, a.head_dim, T(1), memory.key, D);
    pack_rows(value, block.value_row, n, a.value_dim, T(1), memory.value, E);
    block.key = memory.key;
    block.value = memory.value;
    block.key_row = D;
    block.value_row = E;
    block.ahead = 0;
  }
  return block;
}

/// The tiles of a task, rows from `range.t` on of a head or of several by
/// turns, against the keys of `range`.
///
///   reads   query (heads, T, D), key (S, D), value (S, E)
///   writes  output (heads, T, E), statistics (heads, T)
///
///   1. The queries are packed as tiles (D, width).
///   2. Each block of keys passes under all tiles.
///   3. The sums are divided and stored. If NaN may have come from what was
///      hidden, all again with care.
template <typename X, typename Y, typename T>
void attend_tiles(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    const Head<X>& head,
    const Range& range,
    const ForwardResult<Y>& result,
    ForwardMemory<T>& memory,
    bool careful = false) {
  // 1.
  int tiles = 0;
  for (auto t = range.t; t < range.t_end(); t += kMaxTileQueries<T>) {
    const auto rows = std::min<int64_t>(kMaxTileQueries<T>, range.t_end() - t);
    start_tile(a, head, t, rows, memory.tiles[tiles++]);
  }

  // 2.
  const auto& visibility = head.visibility;
  const auto begin = std::max(range.s, visibility.first(range.t) / 16 * 16);
  const auto end = std::min(range.s_end(), visibility.end(range.t_end() - 1));
  for (auto s = begin; s < end; s += kKeyBlock) {
    const auto block =
        block_of(a, head, plan, s, std::min(s + kKeyBlock, end), memory);
    for (int i = 0; i < tiles; ++i) {
      with_constant<kMaxVectors>(memory.tiles[i].vectors, [&](auto vectors) {
        attend_in_steps<decltype(vectors)::value>(
            a, head, block, careful, memory.tiles[i], memory);
      });
    }
  }

  // 3.
  bool finished = true;
  for (int i = 0; i < tiles; ++i) {
    finished =
        finish_tile(a, head, careful, result, memory.tiles[i], memory.scale) &&
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
