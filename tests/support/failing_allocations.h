#pragma once

#include <support/test.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch_attention::testing {

/// A piece of work, and checks of what it leaves behind.
struct Attempt {
  /// Does the work. Its allocations are the ones that fail.
  std::function<void()> run;
  /// Returns what has changed after a run that failed, or nothing.
  std::function<std::string()> changed;
  /// Returns what is wrong after a run that succeeded, or nothing.
  std::function<std::string()> wrong = [] { return std::string(); };
};

/// The results of the failed allocations.
struct FailedAllocations {
  /// the number of allocations that failed
  int64_t count = 0;
  /// one text for each fault: an allocation that left something changed, ended
  /// in another exception than std::bad_alloc and c10::Error, or ended the
  /// process, with the functions that asked for the memory
  std::vector<std::string> faults;

  /// Returns the faults, to be printed.
  std::string text() const;
};

/// The allocations that fail in one attempt.
enum class Failing {
  kOne,
  /// One, and in other attempts one and all that follow, as when memory is
  /// used up for good. LibTorch then ends the process where it frees a graph.
  kOneAndAllThatFollow,
};

/// Lets the allocations of an attempt fail one by one, both by `operator new`
/// and by LibTorch's CPU allocator: the nth for n = 0, 1, 2, ... until an
/// attempt needs no more. Each attempt is a new one of `make`. One that failed
/// must throw std::bad_alloc or c10::Error and leave everything unchanged; it
/// is then repeated with all the memory, and must succeed. Under the address
/// sanitizer only the first ones and every fifth fail.
///
/// Attempts run in separate processes, with one thread, so that those that end
/// the process can be counted. Needs torch_attention_memory_tests, the program
/// that replaces `operator new`.
FailedAllocations fail_each_allocation(
    const std::function<Attempt()>& make,
    Failing failing = Failing::kOneAndAllThatFollow);

/// Checks that allocations failed, and that each did so without a fault.
/// Ignores LibTorch's faults: those with one of `libtorch` among their
/// functions.
inline void check_no_faults(
    FailedAllocations result,
    const std::vector<std::string>& libtorch = {}) {
  auto& faults = result.faults;
  const auto is_libtorch = [&](const std::string& fault) {
    return std::any_of(libtorch.begin(), libtorch.end(), [&](const auto& name) {
      return fault.find(name) != std::string::npos;
    });
  };
  faults.erase(
      std::remove_if(faults.begin(), faults.end(), is_libtorch), faults.end());
  INFO(result.text());
  CHECK(faults.empty());
  CHECK(result.count > 2);
}

} // namespace torch_attention::testing
