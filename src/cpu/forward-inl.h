// The pass forward: online softmax over tiles of scores, or over rows where
// there are few.

#if defined(TORCH_ATTENTION_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_INL_H_
#endif

#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/tasks.h>
#include <cpu/vector-inl.h>
#include <cpu/visibility.h>
#include <cpu/workspace.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Up to kMaxTileQueries queries of one head, on the lanes.
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
};

/// Queries that pass over the keys together, so that a block of keys is read
/// from far away once for all of them.
constexpr int kMaxTiles = 8;

/// How `forward` divides its work. Depends on sizes only, not on threads.
struct ForwardPlan {
  bool by_rows = false;
  int tiles_per_task = 1;
  int64_t query_tasks = 1; // of one head
  int64_t key_splits = 1;
  bool packs_keys = false;
  /// whether rows of keys are asked for before they are read: pays only where
  /// they come from memory
  bool prefetches = false;

  int64_t tasks(int64_t heads) const {
    return heads * query_tasks * key_splits;
  }
};

/// Enough for the threads of large machines.
constexpr int64_t kEnoughTasks = 64;

template <typename X, typename T = Compute<X>>
ForwardPlan forward_plan(const AttentionArguments<X>& a) {
  constexpr int64_t W = kMaxTileQueries<T>;
  // What stays in the level 2 cache beside a block of keys.
  constexpr int64_t kTileBytes = 256 * 1024;
  // A key is worth a split of its own from here on.
  constexpr int64_t kMinSplitKeys = 512;
  const auto ceil_div = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  ForwardPlan plan;
  const auto group = a.num_heads / a.num_kv_heads;
  const auto tiles = ceil_div(a.num_queries, W);
  // More than caches hold.
  constexpr int64_t kFarBytes = 16 * 1024 * 1024;
  plan.prefetches = a.batch_size * a.num_kv_heads * a.num_keys *
          (a.head_dim + a.value_dim) * static_cast<int64_t>(sizeof(X)) >
      kFarBytes;
  plan.by_rows = a.num_queries * group <= 8 && a.num_queries <= 4 &&
      a.dropout == 0 && a.num_keys >= a.num_queries;
  const auto heads =
      a.batch_size * (plan.by_rows ? a.num_kv_heads : a.num_heads);
  if (!plan.by_rows) {
    const auto tile_bytes =
        W * (a.head_dim + a.value_dim) * static_cast<int64_t>(sizeof(T));
    int64_t per_task =
        std::clamp<int64_t>(kTileBytes / tile_bytes, 1, kMaxTiles);
    while (per_task > 1 && heads * ceil_div(tiles, per_task) < kEnoughTasks) {
      per_task /= 2;
    }
    plan.tiles_per_task = static_cast<int>(std::min(per_task, tiles));
    plan.query_tasks = ceil_div(tiles, plan.tiles_per_task);
  }
  const auto tasks = heads * plan.query_tasks;
  if (tasks < kEnoughTasks / 2) {
    plan.key_splits = std::clamp<int64_t>(
        a.num_keys / kMinSplitKeys, 1, ceil_div(kEnoughTasks / 2, tasks));
  }
  // Rows far apart collide in the cache; packing pays when it serves many
  // queries.
  plan.packs_keys = !std::is_same_v<X, T> ||
      (plan.tiles_per_task >= 4 &&
       (a.key.strides.token != a.head_dim ||
        a.value.strides.token != a.value_dim));
  return plan;
}

/// What a task of `forward` writes: the output and statistics, or those of its
/// share of the keys.
template <typename Y>
struct ForwardResult {
  Heads<Y> output;
  RowStatistics<Compute<Y>> statistics;
};

template <typename T>
struct ForwardMemory {
  QueryTile<T> tiles[kMaxTiles];
  T* scores = nullptr; // (kKeyBlock, width), then the weights
  T* previous = nullptr; // (width), maximum before a block of keys
  T* scale = nullptr; // (width)
  T* added_rows = nullptr; // (width, kKeyBlock)
  T* added_tile = nullptr; // (kKeyBlock, width)
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
    if (adds_to_scores(a)) {
      added_rows = parts.take<T>(W * kKeyBlock);
      added_tile = parts.take<T>(kKeyBlock * W);
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
    const T* previous,
    T* scale,
    T* scores,
    int64_t s,
    int64_t n,
    int64_t head,
    const Dropout& dropout) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
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

/// One tile of queries against one block of keys.
template <int kVectors, typename X, typename T>
void attend(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const KeyBlock<T>& block,
    bool careful,
    QueryTile<T>& tile,
    ForwardMemory<T>& memory) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto& visibility = head.visibility;
  const auto t_end = tile.first + tile.rows;
  // Only the keys that some of the queries see; dropout counts four at a time.
  const auto begin =
      std::max(block.begin, visibility.first(tile.first) / 4 * 4);
  const auto n = std::min(block.end, visibility.end(t_end - 1)) - begin;
  if (n <= 0) {
    return;
  }
  const auto verdict = visibility.tile(tile.first, t_end, begin, begin + n);
  if (verdict == Tile::kSkipped) {
    return;
  }
  const auto* key = block.key + (begin - block.begin) * block.key_row;
  const auto* value = block.value + (begin - block.begin) * block.value_row;
  const auto added = added_to_tile(
      a,
      head,
      tile.first,
      tile.rows,
      begin,
      n,
      kWidth,
      memory.added_rows,
      memory.added_tile);
  if (added.hides_all) {
    return;
  }
  const bool cut = verdict == Tile::kCut || added.data != nullptr ||
      shapes_scores(a) || careful;

  std::memcpy(memory.previous, tile.maximum, kWidth * sizeof(T));
  if (!cut) {
    multiply_scores<Product<Start::kZero, Skip::kNothing, true>, kVectors>(
        key,
        block.key_row,
        n,
        tile.query,
        tile.row,
        a.head_dim,
        memory.scores,
        tile.maximum);
  } else {
    multiply_scores<Product<Start::kZero>, kVectors>(
        key,
        block.key_row,
        n,
        tile.query,
        tile.row,
        a.head_dim,
        memory.scores,
        static_cast<T*>(nullptr));
    if (a.softcap > 0) {
      cap_scores(
          a.softcap, n * kWidth, memory.scores, static_cast<T*>(nullptr));
    }
    hide_scores<kVectors>(
        visibility,
        head.alibi_slope,
        tile.first,
        begin,
        n,
        added,
        memory.scores,
        tile.maximum);
  }

  const auto dropout = dropout_of(a);
  const auto weigh = dropout.threshold > 0
      ? (cut ? weigh_scores<kVectors, true, true, T>
             : weigh_scores<kVectors, false, true, T>)
      : (cut ? weigh_scores<kVectors, true, false, T>
             : weigh_scores<kVectors, false, false, T>);
  weigh(
      tile,
      memory.previous,
      memory.scale,
      memory.scores,
      begin,
      n,
      head.index,
      dropout);

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
      value,
      block.value_row,
      a.value_dim,
      memory.scores,
      n,
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
    QueryTile<T>& tile) {
  constexpr int N = kLanes<T>;
  tile.first = first;
  tile.rows = std::min<int64_t>(kMaxTileQueries<T>, a.num_queries - first);
  tile.vectors = static_cast<int>((tile.rows + N - 1) / N);
  tile.row = tile.width();
  tile.started = false;
  pack_transposed(
      head.query + first * a.query.strides.token,
      a.query.strides.token,
      tile.rows,
      a.head_dim,
      static_cast<T>(a.scale),
      tile.query,
      tile.width());
  fill(tile.maximum, tile.width(), -kInfinity<T>);
}

/// Divides by the sum and stores. False, and nothing stored, if NaN may have
/// come from what was hidden.
template <typename X, typename Y, typename T>
bool finish_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t b,
    int64_t h,
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
  const auto kept = hn::Set(d, static_cast<T>(dropout_of(a).scale()));
  // A sum of NaN may have any maximum.
  const auto sees_none = [&](int64_t i) {
    const auto sum = load(d, tile.sum + i);
    const auto maximum = load(d, tile.maximum + i);
    return hn::And(
        hn::Eq(maximum, hn::Set(d, -kInfinity<T>)), hn::Eq(sum, sum));
  };
  for (int64_t i = 0; i < width; i += N) {
    store(
        hn::IfThenZeroElse(sees_none(i), hn::Div(kept, load(d, tile.sum + i))),
        d,
        scale + i);
  }
  unpack_transposed(
      tile.output,
      width,
      tile.rows,
      a.value_dim,
      scale,
      at(result.output, b, h) + tile.first * result.output.strides.token,
      result.output.strides.token);
  if (result.statistics.sum != nullptr) {
    for (int64_t i = 0; i < width; i += N) {
      const auto none = sees_none(i);
      const auto clear = [&](T* x) {
        store(hn::IfThenZeroElse(none, load(d, x)), d, x);
      };
      clear(tile.sum + i);
      clear(tile.maximum + i);
    }
    const auto row = head.index * a.num_queries + tile.first;
    std::copy_n(tile.maximum, tile.rows, result.statistics.maximum + row);
    std::copy_n(tile.sum, tile.rows, result.statistics.sum + row);
  }
  return true;
}

/// Some tiles of queries of one head against keys [s_begin, s_end).
template <typename X, typename Y, typename T>
void attend_tiles(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    int64_t b,
    int64_t h,
    int64_t first,
    int64_t s_begin,
    int64_t s_end,
    const ForwardResult<Y>& result,
    ForwardMemory<T>& memory,
    bool careful = false) {
  const auto head = head_at(a, b, h);
  int tiles = 0;
  for (auto t = first; tiles < plan.tiles_per_task && t < a.num_queries;
       t += kMaxTileQueries<T>) {
    start_tile(a, head, t, memory.tiles[tiles++]);
  }
  const auto& last = memory.tiles[tiles - 1];
  const auto begin = std::max(s_begin, head.visibility.first(first) / 16 * 16);
  const auto end =
      std::min(s_end, head.visibility.end(last.first + last.rows - 1));
  for (auto s = begin; s < end; s += kKeyBlock) {
    KeyBlock<T> block;
    block.begin = s;
    block.end = std::min(s + kKeyBlock, end);
    block.key_row = a.key.strides.token;
    block.value_row = a.value.strides.token;
    const auto* key = head.key + s * block.key_row;
    const auto* value = head.value + s * block.value_row;
    if constexpr (std::is_same_v<X, T>) {
      block.key = key;
      block.value = value;
    }
    if (plan.packs_keys) {
      const auto n = block.end - s;
      const auto D = round_up_to_lanes<T>(a.head_dim);
      const auto E = round_up_to_lanes<T>(a.value_dim);
      pack_rows(key, block.key_row, n, a.head_dim, T(1), memory.key, D);
      pack_rows(value, block.value_row, n, a.value_dim, T(1), memory.value, E);
      block.key = memory.key;
      block.value = memory.value;
      block.key_row = D;
      block.value_row = E;
    }
    for (int i = 0; i < tiles; ++i) {
      with_constant<kMaxVectors>(memory.tiles[i].vectors, [&](auto vectors) {
        attend_in_steps<decltype(vectors)::value>(
            a, head, block, careful, memory.tiles[i], memory);
      });
    }
  }
  bool finished = true;
  for (int i = 0; i < tiles; ++i) {
    finished =
        finish_tile(
            a, head, b, h, careful, result, memory.tiles[i], memory.scale) &&
        finished;
  }
  if (!finished) {
    // Again, leaving out what is hidden one by one.
    attend_tiles(a, plan, b, h, first, s_begin, s_end, result, memory, true);
  }
}

/// Rows of queries that share keys and values: few, so each is a vector of
/// head_dim, and the keys are read once for all.
template <typename T>
struct RowMemory {
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

/// One row against one block of keys: scores become weights, what was summed
/// before is scaled.
template <typename X, typename T>
HWY_NOINLINE void weigh_row(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t t,
    int64_t s,
    int64_t n,
    int64_t row,
    RowMemory<T>& memory) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  auto* scores = memory.scores + row * kKeyBlock;
  const auto hidden = -kInfinity<T>;
  if (a.softcap > 0) {
    cap_scores(a.softcap, n, scores, static_cast<T*>(nullptr));
  }
  if (head.alibi_slope != 0) {
    const auto position = head.visibility.offset + t;
    for (int64_t i = 0; i < n; ++i) {
      scores[i] -=
          head.alibi_slope * static_cast<T>(std::abs(position - (s + i)));
    }
  }
  if (adds_to_scores(a)) {
    fill_added_row(a, head, t, s, n, memory.added);
    for (int64_t i = 0; i < n; ++i) {
      scores[i] =
          memory.added[i] == hidden ? hidden : scores[i] + memory.added[i];
    }
  }
  const auto first = std::clamp<int64_t>(head.visibility.first(t) - s, 0, n);
  const auto end = std::clamp<int64_t>(head.visibility.end(t) - s, 0, n);
  std::fill(scores, scores + first, hidden);
  std::fill(scores + std::max(first, end), scores + kKeyBlock, hidden);

  auto highest = hn::Set(d, memory.maximum[row]);
  for (int64_t i = 0; i < kKeyBlock; i += N) {
    highest = hn::Max(highest, load(d, scores + i));
  }
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

/// All queries of the heads that share one of keys, against keys [s, s_end).
template <typename X, typename Y, typename T>
void attend_rows(
    const AttentionArguments<X>& a,
    const ForwardPlan& plan,
    int64_t b,
    int64_t g,
    int64_t s,
    int64_t s_end,
    const ForwardResult<Y>& result,
    RowMemory<T>& memory,
    bool careful = false) {
  const auto group = a.num_heads / a.num_kv_heads;
  const auto T_ = a.num_queries;
  const auto rows = group * T_;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto first_head = head_at(a, b, g * group);
  const auto& visibility = first_head.visibility;
  for (int64_t r = 0; r < rows; ++r) {
    const auto* query =
        at(a.query, b, g * group + r / T_) + (r % T_) * a.query.strides.token;
    pack_rows(
        query,
        int64_t{0},
        int64_t{1},
        a.head_dim,
        static_cast<T>(a.scale),
        memory.query + r * D,
        D);
    memory.maximum[r] = -kInfinity<T>;
    memory.sum[r] = 0;
  }
  fill(memory.output, rows * E, T(0));
  // Keys and values are read where they are if they are whole vectors, unless
  // many rows would convert each of them again.
  const bool converts_often = !std::is_same_v<X, T> && rows > 2;
  const bool reads_key = D == a.head_dim && !converts_often;
  const bool reads_value = E == a.value_dim && !converts_often;
  const auto begin = std::max(s, visibility.first(0));
  const auto end = std::min(s_end, visibility.end(T_ - 1));
  for (auto k = begin; k < end; k += kKeyBlock) {
    const auto n = std::min(kKeyBlock, end - k);
    const auto key_row = a.key.strides.token;
    const auto value_row = a.value.strides.token;
    const auto* key = first_head.key + k * key_row;
    const auto* value = first_head.value + k * value_row;
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
      const auto head = head_at(a, b, g * group + r / T_);
      weigh_row(a, head, r % T_, k, n, r, memory);
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
  if (!careful && !all_finite(memory.output, rows * E)) {
    attend_rows(a, plan, b, g, s, s_end, result, memory, true);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const auto h = g * group + r / T_;
    const auto sum = memory.sum[r];
    const auto scale = sum == 0 ? T(0) : T(1) / sum;
    auto* output =
        at(result.output, b, h) + (r % T_) * result.output.strides.token;
    const auto* sums = memory.output + r * E;
    store_each<T>(output, a.value_dim, [&](int64_t c, auto d) {
      return hn::Mul(load(d, sums + c), hn::Set(d, scale));
    });
    if (result.statistics.sum != nullptr) {
      const auto row = (b * a.num_heads + h) * T_ + r % T_;
      result.statistics.maximum[row] = sum == 0 ? T(0) : memory.maximum[r];
      result.statistics.sum[row] = sum;
    }
  }
}

/// Joins the results of one head over the splits of its keys: each counts as
/// much as the sum of its weights.
template <typename X, typename T>
void combine_splits(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    int64_t splits,
    T* outputs, // (splits, B, H, T, E), overwritten
    const RowStatistics<T>& parts, // (splits, B, H, T)
    const ForwardResult<X>& result) {
  const auto split_rows = a.batch_size * a.num_heads * a.num_queries;
  for (int64_t t = 0; t < a.num_queries; ++t) {
    const auto row = (b * a.num_heads + h) * a.num_queries + t;
    T maximum = -kInfinity<T>;
    for (int64_t i = 0; i < splits; ++i) {
      if (parts.sum[i * split_rows + row] != 0) {
        maximum = std::max(maximum, parts.maximum[i * split_rows + row]);
      }
    }
    maximum = maximum == -kInfinity<T> ? T(0) : maximum;
    // What the splits' weights add up to, beside the maximum of all.
    const auto weight_of = [&](int64_t i) {
      const auto part = i * split_rows + row;
      const auto sum = parts.sum[part];
      return sum == 0 ? T(0) : sum * std::exp(parts.maximum[part] - maximum);
    };
    T sum = 0;
    for (int64_t i = 0; i < splits; ++i) {
      sum += weight_of(i);
    }
    auto* total = outputs + row * a.value_dim;
    for (int64_t i = 0; i < splits; ++i) {
      // The first part has room for the sum of all.
      const auto weight = weight_of(i);
      const auto share = weight == 0 ? T(0) : weight / sum;
      const auto* part = outputs + (i * split_rows + row) * a.value_dim;
      store_each<T>(total, a.value_dim, [&](int64_t c, auto d) {
        const auto f = hn::Set(d, share);
        return i == 0 ? hn::Mul(f, load(d, part + c))
                      : hn::MulAdd(f, load(d, part + c), load(d, total + c));
      });
    }
    auto* output = at(result.output, b, h) + t * result.output.strides.token;
    store_each<T>(output, a.value_dim, [&](int64_t c, auto d) {
      return load(d, total + c);
    });
    if (result.statistics.sum != nullptr) {
      result.statistics.maximum[row] = maximum;
      result.statistics.sum[row] = sum;
    }
  }
}

/// The task `i` of a plan: which head, which queries, which keys.
struct ForwardTask {
  int64_t b;
  int64_t head;
  int64_t query_task;
  int64_t split;
};

inline ForwardTask task_at(
    const ForwardPlan& plan,
    int64_t heads,
    int64_t i,
    bool heaviest_first) {
  ForwardTask task{};
  task.split = i % plan.key_splits;
  i /= plan.key_splits;
  int64_t head = 0;
  if (heaviest_first) {
    head = i % heads;
    task.query_task = plan.query_tasks - 1 - i / heads;
  } else {
    head = i / plan.query_tasks;
    task.query_task = plan.query_tasks - 1 - i % plan.query_tasks;
  }
  task.head = head;
  return task;
}

template <typename X>
void forward(
    const AttentionArguments<X>& a,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads) {
  using T = Compute<X>;
  const auto plan = forward_plan(a);
  const auto kv_or_query_heads = plan.by_rows ? a.num_kv_heads : a.num_heads;
  const auto heads = a.batch_size * kv_or_query_heads;
  const auto split_rows = a.batch_size * a.num_heads * a.num_queries;
  AlignedMemory partial_memory;
  T* partial_outputs = nullptr;
  RowStatistics<T> partial;
  if (plan.key_splits > 1) {
    const auto take = [&](Parts& parts) {
      const auto rows = plan.key_splits * split_rows;
      partial_outputs = parts.take<T>(rows * a.value_dim);
      partial.maximum = parts.take<T>(rows);
      partial.sum = parts.take<T>(rows);
    };
    Parts count;
    take(count);
    partial_memory = allocate(count.size());
    Parts parts(partial_memory.get());
    take(parts);
  }
  const auto part_of = [&](int64_t split) -> ForwardResult<T> {
    Heads<T> part;
    part.data = partial_outputs + split * split_rows * a.value_dim;
    part.strides.token = a.value_dim;
    part.strides.head = a.num_queries * a.value_dim;
    part.strides.batch = a.num_heads * part.strides.head;
    const auto first = split * split_rows;
    return {part, {partial.maximum + first, partial.sum + first}};
  };
  // Few heads: the long rows first, lest one thread is left with one. Many
  // heads: one after the other, so that keys stay in the cache.
  const bool heaviest_first = heads < 8 * threads.count;
  const auto split_keys =
      ((a.num_keys + plan.key_splits - 1) / plan.key_splits + 15) / 16 * 16;
  run_tasks(threads, plan.tasks(heads), [&](int64_t i) {
    const auto task = task_at(plan, heads, i, heaviest_first);
    const auto b = task.head / kv_or_query_heads;
    const auto h = task.head % kv_or_query_heads;
    const auto s = std::min(task.split * split_keys, a.num_keys);
    const auto s_end = std::min(s + split_keys, a.num_keys);
    const auto attend_to = [&](const auto& result) {
      if (plan.by_rows) {
        Parts count;
        (void)RowMemory<T>(count, a);
        Parts parts(thread_memory(count.size()));
        RowMemory<T> memory(parts, a);
        attend_rows(a, plan, b, h, s, s_end, result, memory);
        return;
      }
      Parts count;
      (void)ForwardMemory<T>(count, a, plan);
      Parts parts(thread_memory(count.size()));
      ForwardMemory<T> memory(parts, a, plan);
      const auto first =
          task.query_task * plan.tiles_per_task * kMaxTileQueries<T>;
      attend_tiles(a, plan, b, h, first, s, s_end, result, memory);
    };
    if (plan.key_splits == 1) {
      attend_to(ForwardResult<X>{output, statistics});
    } else {
      attend_to(part_of(task.split));
    }
  });
  if (plan.key_splits > 1) {
    // Waking the threads takes longer than to add up a few rows.
    constexpr int64_t kFew = 64 * 1024;
    const bool few = plan.key_splits * split_rows * a.value_dim < kFew;
    const auto& combine_threads = few ? Threads{} : threads;
    run_tasks(combine_threads, a.batch_size * a.num_heads, [&](int64_t i) {
      combine_splits(
          a,
          i / a.num_heads,
          i % a.num_heads,
          plan.key_splits,
          partial_outputs,
          partial,
          ForwardResult<X>{output, statistics});
    });
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void forward(
    const AttentionArguments<X>& arguments,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads) {
  if (arguments.batch_size == 0 || arguments.num_heads == 0 ||
      arguments.num_queries == 0) {
    return;
  }
  TORCH_ATTENTION_DISPATCH(forward(arguments, output, statistics, threads));
}

} // namespace torch_attention::cpu

#endif // HWY_ONCE

#endif
