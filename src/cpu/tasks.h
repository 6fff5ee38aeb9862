#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torch_attention::cpu {

/// Calls `task(0)` to `task(n - 1)`. A thread that becomes free takes the next
/// `num_from(i)` tasks, from `i` on.
template <typename Num, typename Task>
void take_tasks(
    const Threads& threads,
    int64_t n,
    const Num& num_from,
    const Task& task) {
  const auto workers = std::min(threads.count, n);
  if (workers <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      task(i);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  threads.parallel_for(workers, [&](int64_t /*worker*/) {
    for (auto begin = next.load(std::memory_order_relaxed); begin < n;) {
      const auto end = std::min(begin + num_from(begin), n);
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

/// How often each thread takes more tasks, where there are many.
constexpr int64_t kTimesPerThread = 32;

/// Calls `task(i)` for i in [0, n), of similar cost. Many are taken a few at a
/// time: neighbours read and write the same memory.
template <typename Task>
void run_tasks(const Threads& threads, int64_t n, const Task& task) {
  const auto step = std::max<int64_t>(1, n / (threads.count * kTimesPerThread));
  take_tasks(
      threads, n, [step](int64_t /*begin*/) { return step; }, task);
}

/// Calls `task(b, t)` for each token t of each b, which has so many `numbers`
/// that are read once. Takes as many tokens at once as pay for waking a thread.
template <typename Task>
void run_tasks_of_tokens(
    const Threads& threads,
    int64_t batch_size,
    int64_t num_tokens,
    int64_t numbers,
    const Task& task) {
  constexpr int64_t kLeastNumbers = 32 * 1024;
  const auto n = batch_size * num_tokens;
  const auto per_task =
      std::max<int64_t>(1, kLeastNumbers / std::max<int64_t>(1, numbers));
  run_tasks(threads, (n + per_task - 1) / per_task, [&](int64_t i) {
    const auto end = std::min(n, (i + 1) * per_task);
    for (auto token = i * per_task; token < end; ++token) {
      task(token / num_tokens, token % num_tokens);
    }
  });
}

/// Calls `task(work, i)` for i in [0, count_of(work)), for each of the works,
/// one after the other. A thread takes `num_from(begin, n)` of all n tasks at
/// once, from `begin` on.
template <typename Works, typename Num, typename Count, typename Task>
void take_tasks_of(
    const Threads& threads,
    const Works& works,
    const Num& num_from,
    const Count& count_of,
    const Task& task) {
  std::vector<int64_t> ends;
  ends.reserve(works.size());
  int64_t n = 0;
  for (const auto& work : works) {
    n += count_of(work);
    ends.push_back(n);
  }
  const auto num_of_all = [&](int64_t begin) { return num_from(begin, n); };
  take_tasks(threads, n, num_of_all, [&](int64_t i) {
    const auto at = std::upper_bound(ends.begin(), ends.end(), i);
    const auto begin = at == ends.begin() ? 0 : *(at - 1);
    task(works[static_cast<size_t>(at - ends.begin())], i - begin);
  });
}

/// Calls the tasks of works behind pointers, which are sorted heaviest first:
/// heavy tasks are taken one by one, later ones a few at a time.
template <typename Works, typename Count, typename Task>
void run_tasks_of(
    const Threads& threads,
    const Works& works,
    const Count& count_of,
    const Task& task) {
  const auto num_from = [&](int64_t begin, int64_t /*n*/) {
    return std::max<int64_t>(1, begin / (threads.count * kTimesPerThread));
  };
  take_tasks_of(
      threads,
      works,
      num_from,
      [&](const auto& work) { return count_of(*work); },
      [&](const auto& work, int64_t i) { task(*work, i); });
}

/// Calls the tasks of works that read one stream of memory in order. Threads
/// take long pieces of it first, which memory gives fastest, and short ones at
/// the end, so that all finish together.
template <typename Works, typename Count, typename Task>
void run_tasks_of_stream(
    const Threads& threads,
    const Works& works,
    const Count& count_of,
    const Task& task) {
  const auto num_from = [&](int64_t begin, int64_t n) {
    return std::max<int64_t>(1, (n - begin) / (2 * threads.count));
  };
  take_tasks_of(threads, works, num_from, count_of, task);
}

} // namespace torch_attention::cpu
