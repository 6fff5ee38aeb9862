#pragma once

#include <cpu/attention.h>

#include <ATen/Parallel.h>

namespace torch_attention::kernels {

/// Returns LibTorch's threads, for our own kernels.
inline cpu::Threads threads() {
  cpu::Threads threads;
  // Inside a parallel region no other threads are available.
  threads.count = at::in_parallel_region() ? 1 : at::get_num_threads();
  threads.parallel_for = [](int64_t n, const std::function<void(int64_t)>& fn) {
    at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
      for (auto i = begin; i < end; ++i) {
        fn(i);
      }
    });
  };
  return threads;
}

} // namespace torch_attention::kernels
