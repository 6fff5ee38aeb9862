#pragma once

#include <cstdint>
#include <functional>

namespace torch_attention::tools {

/// What a call took at most above what was taken before it.
struct PeakMemory {
  /// Bytes that LibTorch's CPU allocator gave to this thread, the call's output
  /// included. What kernels and BLAS keep for each thread is not seen here.
  int64_t allocated = 0;
  /// Bytes of physical memory of the whole process, from the system, in pages;
  /// -1 where it does not tell. What an earlier call freed and the C++ library
  /// kept is not counted again.
  int64_t resident = -1;
};

PeakMemory peak_memory_of(const std::function<void()>& function);

} // namespace torch_attention::tools
