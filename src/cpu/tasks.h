#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <atomic>

namespace torch_attention::cpu {

/// Calls `task(0)` to `task(n - 1)`. Threads take the next tasks as they become
/// free, so the heaviest should come first.
template <typename Task>
void run_tasks(const Threads& threads, int64_t n, const Task& task) {
  const auto workers = std::min(threads.count, n);
  if (workers <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      task(i);
    }
    return;
  }
  // Many small tasks are taken a few at a time.
  const auto step = std::max<int64_t>(1, n / (workers * 32));
  std::atomic<int64_t> next{0};
  threads.parallel_for(workers, [&](int64_t /*worker*/) {
    for (;;) {
      const auto begin = next.fetch_add(step, std::memory_order_relaxed);
      if (begin >= n) {
        return;
      }
      for (auto i = begin; i < std::min(begin + step, n); ++i) {
        task(i);
      }
    }
  });
}

} // namespace torch_attention::cpu
