// The forward pass: online softmax over tiles of scores, or over rows where
// there are few.

#if defined(TORCH_ATTENTION_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_FORWARD_INL_H_
#undef TORCH_ATTENTION_CPU_FORWARD_INL_H_
#else
#define TORCH_ATTENTION_CPU_FORWARD_INL_H_
#endif

#include <cpu/forward_plan-inl.h>
#include <cpu/forward_rows-inl.h>
#include <cpu/forward_splits-inl.h>
#include <cpu/forward_tiles-inl.h>
#include <cpu/mask_map-inl.h>
#include <cpu/sequences.h>
#include <cpu/tasks.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <memory>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// One attention, or one of packed sequences, divided into tasks.
template <typename X>
class ForwardWork {
 public:
  using T = Compute<X>;

  /// `map` may be null.
  ForwardWork(
      const AttentionArguments<X>& a,
      const MaskMap<T>* map,
      const Heads<X>& output,
      const RowStatistics<T>& statistics)
      : a_(a),
        map_(map),
        plan_(forward_plan(a)),
        splits_(a, plan_.key_splits),
        result_{output, statistics, a.sinks} {}

  /// Returns the number of heads, interleaved heads of a task counted as one.
  int64_t heads() const {
    return a_.batch_size * heads_per_batch();
  }

  int64_t num_tasks() const {
    return plan_.tasks(heads());
  }

  void attend(int64_t i, bool heaviest_first) const {
    const auto task = task_at(plan_, heads(), i, heaviest_first);
    const auto b = task.head / heads_per_batch();
    const auto h = task.head % heads_per_batch() * plan_.shared_heads;
    auto head = head_at(a_, b, h, plan_.shared_heads);
    head.map = map_;
    const auto range = range_of(task);
    if (plan_.key_splits == 1) {
      attend_to(head, range, result_);
    } else {
      attend_to(head, range, splits_.part(a_, task.split));
    }
  }

  int64_t num_joins() const {
    return plan_.key_splits > 1 ? a_.batch_size * a_.num_heads : 0;
  }

  /// Returns how many numbers `join` adds up.
  int64_t num_joined() const {
    return plan_.key_splits > 1 ? plan_.key_splits * splits_.rows * a_.value_dim
                                : 0;
  }

  void join(int64_t i) const {
    join_splits(a_, i / a_.num_heads, i % a_.num_heads, splits_, result_);
  }

 private:
  int64_t heads_per_batch() const {
    return a_.num_heads / plan_.shared_heads;
  }

  Range range_of(const ForwardTask& task) const {
    const auto rows = a_.num_queries * plan_.shared_heads;
    const auto per_task = plan_.tiles_per_task > 0
        ? int64_t{plan_.tiles_per_task} * kMaxTileQueries<T>
        : rows;
    const auto keys = plan_.key_splits > 1 ? kPartKeys : a_.num_keys;
    Range range;
    range.t = task.query_task * per_task;
    range.rows = std::min(per_task, rows - range.t);
    range.s = task.split * keys;
    range.n = std::min(range.s + keys, a_.num_keys) - range.s;
    return range;
  }

  template <typename Y>
  void attend_to(
      const Head<X>& head,
      const Range& range,
      const ForwardResult<Y>& to) const {
    // By the number of all rows, so that each row is computed alike however
    // many rows a task has.
    const auto rows = a_.num_queries * plan_.shared_heads;
    auto beside = range;
    beside.rows = range.t_end() == rows ? rows_beside_tiles(a_, rows) : 0;
    beside.t = range.t_end() - beside.rows;
    auto in_tiles = range;
    in_tiles.rows -= beside.rows;
    if (in_tiles.rows > 0) {
      Parts count;
      (void)ForwardMemory<T>(count, a_, plan_);
      Parts parts(thread_memory(count.size()));
      ForwardMemory<T> memory(parts, a_, plan_);
      attend_tiles(a_, plan_, head, in_tiles, to, memory);
    }
    if (beside.rows > 0) {
      Parts count;
      (void)RowMemory<T>(count, a_, beside.rows);
      Parts parts(thread_memory(count.size()));
      RowMemory<T> memory(parts, a_, beside.rows);
      attend_rows(a_, plan_, head, beside, to, memory);
    }
  }

  AttentionArguments<X> a_;
  const MaskMap<T>* map_;
  ForwardPlan plan_;
  SplitResults<T> splits_;
  ForwardResult<X> result_;
};

/// Returns true if there are few heads: the longest rows then go first, so that
/// no thread ends late. Many heads go one after the other, so that keys stay in
/// the cache.
inline bool heaviest_first(int64_t heads, const Threads& threads) {
  return heads < 8 * threads.count;
}

/// Returns the threads for `join`: waking them takes longer than adding up a
/// few rows.
inline Threads threads_to_join(int64_t num_joined, const Threads& threads) {
  constexpr int64_t kFew = 64 * 1024;
  return num_joined < kFew ? Threads{} : threads;
}

/// Plans each sequence by itself; the threads take the tasks of all.
template <typename X>
void forward_packed(
    const AttentionArguments<X>& packed,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads) {
  using Work = ForwardWork<X>;
  std::vector<AttentionArguments<X>> attentions;
  std::vector<int64_t> first_queries;
  for (const auto& sequence : heaviest_sequences_first(packed)) {
    const auto a = sequence_of(packed, sequence);
    if (a.num_queries > 0) {
      attentions.push_back(a);
      first_queries.push_back(packed.query_starts[sequence.index]);
    }
  }
  const MaskMaps<X> maps(attentions, {}, threads);
  std::vector<std::unique_ptr<Work>> works;
  int64_t heads = 0;
  int64_t num_joined = 0;
  for (size_t i = 0; i < attentions.size(); ++i) {
    const auto first = first_queries[i];
    works.push_back(std::make_unique<Work>(
        attentions[i],
        maps.at(i),
        from_token(output, first),
        from_token(statistics, first, packed.num_heads)));
    heads += works.back()->heads();
    num_joined += works.back()->num_joined();
  }
  const bool by_rows = heaviest_first(heads, threads);
  run_tasks_of(
      threads,
      works,
      [](const Work& work) { return work.num_tasks(); },
      [&](const Work& work, int64_t i) { work.attend(i, by_rows); });
  run_tasks_of(
      threads_to_join(num_joined, threads),
      works,
      [](const Work& work) { return work.num_joins(); },
      [](const Work& work, int64_t i) { work.join(i); });
}

/// Computes softmax attention of all heads.
///
///   reads   query (B, H, T, D), key (B, G, S, D), value (B, G, S, E)
///   writes  output (B, H, T, E), statistics (B, H, T)
///
///   1. Mask and bias are read once, and the work is divided: by heads, by
///      queries, and by keys where heads and queries are too few.
///   2. Each task attends, by tiles or by rows.
///   3. The results of parts of the keys are joined.
template <typename X>
void forward(
    const AttentionArguments<X>& a,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads) {
  if (a.query_starts != nullptr) {
    forward_packed(a, output, statistics, threads);
    return;
  }

  // 1.
  const MaskMaps<X> maps({a}, {}, threads);
  const ForwardWork<X> work(a, maps.at(0), output, statistics);
  const bool by_rows = heaviest_first(work.heads(), threads);

  // 2.
  run_tasks(
      threads, work.num_tasks(), [&](int64_t i) { work.attend(i, by_rows); });

  // 3.
  if (work.num_joins() > 0) {
    run_tasks(
        threads_to_join(work.num_joined(), threads),
        work.num_joins(),
        [&](int64_t i) { work.join(i); });
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
