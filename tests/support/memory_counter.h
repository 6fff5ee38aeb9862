#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace torch_attention::testing {

/// Counts the memory that LibTorch's CPU allocator gives to this thread during
/// the object's lifetime.
class MemoryCounter {
 public:
  /// Returns the bytes of the largest single allocation.
  size_t largest() const {
    return static_cast<size_t>(reporter_->largest);
  }

 private:
  struct Reporter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(
        void* /*ptr*/,
        int64_t alloc_size,
        size_t /*total_allocated*/,
        size_t /*total_reserved*/,
        c10::Device /*device*/) override {
      largest = std::max(largest, alloc_size);
    }

    bool memoryProfilingEnabled() const override {
      return true;
    }

    int64_t largest = 0;
  };

  std::shared_ptr<Reporter> reporter_ = std::make_shared<Reporter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, reporter_};
};

} // namespace torch_attention::testing
