#include <harness/memory.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

namespace torch_attention::benchmarks {

namespace {

/// Counts the memory that LibTorch's CPU allocator gives to this thread.
struct AllocationCounter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(
      void* /*ptr*/,
      int64_t alloc_size,
      size_t /*total_allocated*/,
      size_t /*total_reserved*/,
      c10::Device /*device*/) override {
    taken += alloc_size;
    peak = std::max(peak, taken);
  }

  bool memoryProfilingEnabled() const override {
    return true;
  }

  int64_t taken = 0;
  int64_t peak = 0;
};

/// Returns the bytes in a line of /proc/self/status; -1 if there is no such
/// line.
int64_t bytes_of_status(const std::string& name) {
  constexpr int64_t kKilo = 1024;
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(name + ":", 0) == 0) {
      return kKilo * std::stoll(line.substr(name.size() + 1));
    }
  }
  return -1;
}

/// Resets the peak of the resident memory to its current size. Returns whether
/// the system allows it.
bool reset_resident_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  return !file.fail();
}

} // namespace

PeakMemory peak_memory_of(const std::function<void()>& function) {
  auto counter = std::make_shared<AllocationCounter>();
  const auto is_reset = reset_resident_peak();
  const auto before = bytes_of_status("VmRSS");
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    function();
  }
  const auto after = bytes_of_status("VmHWM");
  PeakMemory memory;
  memory.allocated = counter->peak;
  if (is_reset && before >= 0 && after >= 0) {
    memory.resident = std::max<int64_t>(after - before, 0);
  }
  return memory;
}

} // namespace torch_attention::benchmarks
