// The pass forward: online softmax over tiles of scores, or over rows where
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
#include <cpu/tasks.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Softmax attention of all heads.
///
///   reads   query (B, H, T, D), key (B, G, S, D), value (B, G, S, E)
///   writes  output (B, H, T, E), statistics (B, H, T)
///
///   1. The work is divided: by heads, by queries, and by keys where those are
///      too few.
///   2. Each task attends, by tiles or by rows.
///   3. The results of parts of the keys are joined.
template <typename X>
void forward(
    const AttentionArguments<X>& a,
    const Heads<X>& output,
    const RowStatistics<Compute<X>>& statistics,
    const Threads& threads) {
  using T = Compute<X>;

  // 1.
  const auto plan = forward_plan(a);
  const auto heads_per_batch = a.num_heads / plan.shared_heads;
  const auto heads = a.batch_size * heads_per_batch;
  const SplitResults<T> splits(a, plan.key_splits);
  // Few heads: the long rows first, lest one thread is left with one. Many
  // heads: one after the other, so that keys stay in the cache.
  const bool heaviest_first = heads < 8 * threads.count;
  const auto split_keys =
      ((a.num_keys + plan.key_splits - 1) / plan.key_splits + 15) / 16 * 16;
  const ForwardResult<X> result{output, statistics, a.sinks};

  // 2.
  run_tasks(threads, plan.tasks(heads), [&](int64_t i) {
    const auto task = task_at(plan, heads, i, heaviest_first);
    const auto b = task.head / heads_per_batch;
    const auto h = task.head % heads_per_batch * plan.shared_heads;
    const auto head = head_at(a, b, h, plan.shared_heads);
    const auto rows = a.num_queries * plan.shared_heads;
    const auto per_task = plan.tiles_per_task > 0
        ? int64_t{plan.tiles_per_task} * kMaxTileQueries<T>
        : rows;
    Range range;
    range.t = task.query_task * per_task;
    range.rows = std::min(per_task, rows - range.t);
    range.s = std::min(task.split * split_keys, a.num_keys);
    range.n = std::min(range.s + split_keys, a.num_keys) - range.s;
    const auto attend_to = [&](const auto& to) {
      auto beside = range;
      beside.rows = rows_beside_tiles(a, range.rows);
      beside.t = range.t_end() - beside.rows;
      auto in_tiles = range;
      in_tiles.rows -= beside.rows;
      if (in_tiles.rows > 0) {
        Parts count;
        (void)ForwardMemory<T>(count, a, plan);
        Parts parts(thread_memory(count.size()));
        ForwardMemory<T> memory(parts, a, plan);
        attend_tiles(a, plan, head, in_tiles, to, memory);
      }
      if (beside.rows > 0) {
        Parts count;
        (void)RowMemory<T>(count, a, beside.rows);
        Parts parts(thread_memory(count.size()));
        RowMemory<T> memory(parts, a, beside.rows);
        attend_rows(a, plan, head, beside, to, memory);
      }
    };
    if (plan.key_splits == 1) {
      attend_to(result);
    } else {
      attend_to(splits.part(a, task.split));
    }
  });

  // 3.
  if (plan.key_splits > 1) {
    // Waking the threads takes longer than to add up a few rows.
    constexpr int64_t kFew = 64 * 1024;
    const bool few = plan.key_splits * splits.rows * a.value_dim < kFew;
    const auto& join_threads = few ? Threads{} : threads;
    run_tasks(join_threads, a.batch_size * a.num_heads, [&](int64_t i) {
      join_splits(a, i / a.num_heads, i % a.num_heads, splits, result);
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
