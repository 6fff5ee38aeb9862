#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torch_attention::cpu {

/// Calls `task(0)` to `task(n - 1)`. Threads take the next tasks as they become
/// free, so the heaviest should come first: those are taken one by one, and
/// small ones after them a few at a time.
template <typename Task>
void run_tasks(const Threads& threads, int64_t n, const Task& task) {
  const auto workers = std::min(threads.count, n);
  if (workers <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      task(i);
    }
    return;
  }
  const auto parts = workers * 32;
  const auto end_from = [&](int64_t begin) {
    return std::min(
        begin + std::max<int64_t>(1, std::min(begin, n) / parts), n);
  };
  std::atomic<int64_t> next{0};
  threads.parallel_for(workers, [&](int64_t /*worker*/) {
    for (auto begin = next.load(std::memory_order_relaxed); begin < n;) {
      const auto end = end_from(begin);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) {
        continue;
      }
      for (auto i = begin; i < end; ++i) {
        task(i);
      }
      begin = next.load(std::memory_order_relaxed);
    }
  });
}

/// Calls `task(work, i)` for i of [0, count_of(work)), for each of the works,
/// one after the other.
template <typename Works, typename Count, typename Task>
void run_tasks_of(
    const Threads& threads,
    const Works& works,
    const Count& count_of,
    const Task& task) {
  std::vector<int64_t> ends;
  ends.reserve(works.size());
  int64_t end = 0;
  for (const auto& work : works) {
    end += count_of(*work);
    ends.push_back(end);
  }
  run_tasks(threads, end, [&](int64_t i) {
    const auto at = std::upper_bound(ends.begin(), ends.end(), i);
    const auto begin = at == ends.begin() ? 0 : *(at - 1);
    task(*works[static_cast<size_t>(at - ends.begin())], i - begin);
  });
}

} // namespace torch_attention::cpu
