// The division of the forward pass's work.

#if defined(TORCH_ATTENTION_CPU_FORWARD_PLAN_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_PLAN_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_PLAN_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_PLAN_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/amx-inl.h>
#include <cpu/math-inl.h>
#include <cpu/products-inl.h>
#include <cpu/sequences.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The most tiles of queries in a task: a block of keys is read from memory
/// once for all of them.
constexpr int kMaxTiles = 8;

/// The keys of a part, which begins at a multiple of this number. Each part has
/// sums of its own, which are added up in the order of the parts. So no bit of
/// the results depends on which parts are computed by one task.
constexpr int64_t kPartKeys = 512;

/// The division of `forward`'s work. Depends on sizes only, not on threads.
struct ForwardPlan {
  /// The heads of a task: 1, or all that read the same keys. Their queries are
  /// rows of the same tiles, so that keys are read once for all.
  int64_t shared_heads = 1;
  int tiles_per_task = 0;
  int64_t query_tasks = 1; // of the heads of a task
  /// 1, or the number of parts: each is then a task.
  int64_t key_splits = 1;
  bool packs_keys = false;
  /// whether keys are prefetched: pays only where they come from memory
  bool prefetches = false;

  int64_t tasks(int64_t heads) const {
    return heads * query_tasks * key_splits;
  }
};

/// Enough for the threads of large machines.
constexpr int64_t kEnoughTasks = 64;

/// Returns whether products are computed by the tiles of AMX, which round
/// unlike rows: before a backward pass, if that computes by tiles.
template <typename X>
bool goes_by_tiles(const AttentionArguments<X>& a) {
  return multiplies_tiles<X>() && !a.same_bits &&
      (!a.has_backward || backward_goes_by_tiles(a));
}

/// Returns the number of remainder rows, the last of all `n` rows of a head,
/// which are computed as rows: as a tile they would leave most of its lanes
/// empty.
template <typename X, typename T = Compute<X>>
int64_t rows_beside_tiles(const AttentionArguments<X>& a, int64_t n) {
  constexpr int64_t N = kLanes<T>;
  if (a.dropout > 0) {
    return 0;
  }
  if (a.reads_int8()) {
    return n;
  }
  // Measured: with more rows a tile of their own is faster, and so is one more
  // vector of an existing tile.
  constexpr int64_t kFewKeys = 64;
  if (goes_by_tiles(a) && a.has_backward) {
    return 0;
  }
  if (goes_by_tiles(a) && a.num_keys >= kFewKeys) {
    return n <= N / 4 ? n : n % N <= 1 ? n % N : 0;
  }
  if (multiplies_pairs<X>()) {
    // Tiles have to pack the values, and rows do not.
    const auto left = n % kMaxTileQueries<T>;
    return left <= N * 3 / 2 ? left : 0;
  }
  return n <= N * 3 / 4 ? n : n % N <= N * 3 / 8 ? n % N : 0;
}

template <typename X, typename T = Compute<X>>
ForwardPlan forward_plan(const AttentionArguments<X>& a) {
  constexpr int64_t W = kMaxTileQueries<T>;
  // The bytes that stay in the level 2 cache with a block of keys.
  constexpr int64_t kTileBytes = 256 * 1024;
  // With so many keys for each query, the queries are the last of a long text.
  constexpr int64_t kFewOfKeys = 8;
  const auto ceil_div = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  ForwardPlan plan;
  // More than caches hold.
  constexpr int64_t kFarBytes = 4 * 1024 * 1024;
  const auto size =
      a.reads_int8() ? int64_t{1} : static_cast<int64_t>(sizeof(X));
  plan.prefetches = a.batch_size * a.num_kv_heads * a.num_keys *
          (a.head_dim + a.value_dim) * size >
      kFarBytes;
  // Dropout counts the queries of one head.
  if (a.dropout == 0) {
    plan.shared_heads = a.num_heads / a.num_kv_heads;
  }
  const auto rows = a.num_queries * plan.shared_heads;
  const auto heads = num_sequences(a) * (a.num_heads / plan.shared_heads);
  const auto parts = std::max<int64_t>(1, ceil_div(a.num_keys, kPartKeys));
  if (rows_beside_tiles(a, rows) < rows) {
    const auto tiles = ceil_div(rows, W);
    const auto tile_bytes =
        W * (a.head_dim + a.value_dim) * static_cast<int64_t>(sizeof(T));
    const auto most =
        std::clamp<int64_t>(kTileBytes / tile_bytes, 1, kMaxTiles);
    auto per_task = most;
    // Few rows leave no other work to divide than the keys.
    const bool few = tiles <= most || a.num_queries * kFewOfKeys <= a.num_keys;
    const auto splits = few ? parts : 1;
    while (per_task > 1 &&
           heads * ceil_div(tiles, per_task) * splits < kEnoughTasks) {
      per_task /= 2;
    }
    plan.query_tasks = ceil_div(tiles, per_task);
    plan.tiles_per_task = static_cast<int>(ceil_div(tiles, plan.query_tasks));
  }
  const auto tasks = heads * plan.query_tasks;
  // Joining the results of more rows costs more.
  constexpr int64_t kFewRows = 64;
  const auto enough = rows <= kFewRows ? kEnoughTasks : kEnoughTasks / 2;
  if (tasks < enough) {
    plan.key_splits = parts;
  }
  // Rows far apart collide in the cache; packing pays when it serves many
  // queries.
  plan.packs_keys = !std::is_same_v<X, T> ||
      (plan.tiles_per_task >= 4 &&
       (a.key.strides.token != a.head_dim ||
        a.value.strides.token != a.value_dim));
  return plan;
}

/// A task of a plan: which head, which queries, which keys.
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

/// The results of a task of `forward`: output and statistics, of all keys or of
/// its share of them.
template <typename Y>
struct ForwardResult {
  Heads<Y> output; // (B, H, T, E)
  RowStatistics<Compute<Y>> statistics; // (B, H, T)
  /// (H), to be added; null: none
  const Compute<Y>* sinks = nullptr;
  /// The output is not divided by the sum, since it is of one part of the keys.
  bool is_part = false;
};

/// The sums of weights and values of rows, relative to the rows' maximum.
template <typename T>
struct RowSums {
  T* maximum = nullptr;
  T* sum = nullptr;
  T* output = nullptr;
};

/// Returns what is subtracted from scores: the maximum, or any finite number if
/// nothing is seen yet.
template <typename T>
HWY_INLINE Vector<T> shift_of(Vector<T> maximum) {
  return hn::IfThenZeroElse(
      hn::Eq(maximum, hn::Set(Tag<T>(), -kInfinity<T>)), maximum);
}

/// How sums that are relative to different maxima are added up.
template <typename T>
struct Addition {
  Vector<T> maximum;
  Vector<T> factor;
  Vector<T> factor_of_part;

  Addition(Vector<T> before, Vector<T> part) {
    maximum = hn::Max(before, part);
    const auto shift = shift_of<T>(maximum);
    factor = exp<true, T>(hn::Sub(before, shift));
    factor_of_part = exp<true, T>(hn::Sub(part, shift));
  }

  /// Adds a vector of a part's sums.
  HWY_INLINE void add(const T* part, T* sums) const {
    const Tag<T> d;
    const auto before = hn::Mul(load(d, sums), factor);
    store(hn::MulAdd(load(d, part), factor_of_part, before), d, sums);
  }
};

/// Calls `fn(begin, end)` for the keys [begin, end) of each part.
template <typename Fn>
void for_each_part(int64_t begin, int64_t end, const Fn& fn) {
  while (begin < end) {
    const auto part_end = std::min(end, (begin / kPartKeys + 1) * kPartKeys);
    fn(begin, part_end);
    begin = part_end;
  }
}

/// Adds a sink to the statistics of a row. Returns the factor for earlier sums,
/// which are relative to the earlier maximum.
template <typename T>
T add_sink(T sink, T& maximum, T& sum) {
  const auto highest = std::max(maximum, sink);
  const auto factor = std::exp(maximum - highest);
  sum = sum * factor + std::exp(sink - highest);
  maximum = highest;
  return factor;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
