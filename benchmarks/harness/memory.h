#pragma once

#include <cstdint>
#include <functional>

namespace torch_attention::benchmarks {

/// The peak memory of a call beyond the memory in use before it.
struct PeakMemory {
  /// Bytes that LibTorch's CPU allocator gave to this thread, including the
  /// call's output. Memory that kernels and BLAS keep for each thread is not
  /// counted.
  int64_t allocated = 0;
  /// Bytes of physical memory of the whole process, from the system, in pages;
  /// -1 where the system does not tell. Memory that an earlier call freed and
  /// the C++ library kept is not counted again.
  int64_t resident = -1;
};

PeakMemory peak_memory_of(const std::function<void()>& function);

} // namespace torch_attention::benchmarks
