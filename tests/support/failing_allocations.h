#pragma once

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
  /// process, with the functions that allocated
  std::vector<std::string> faults;

  /// Returns the faults, to be printed.
  std::string text() const;
};

/// The allocations that fail.
struct Failures {
  /// After one failure all that follow fail too, in attempts of their own, as
  /// when memory is used up for good. LibTorch then ends the process where it
  /// frees a graph.
  bool for_good = true;
  /// how many threads compute
  int threads = 1;
  /// the first allocation that fails, and the steps from one to the next. Under
  /// the address sanitizer, where attempts take long, only the first ones and
  /// every twentieth fail
  int64_t first = 0;
  int64_t every = 1;
};

/// Lets the allocations of an attempt fail one by one, both by `operator new`
/// and by LibTorch's CPU allocator: the nth for n = 0, 1, 2, ... until an
/// attempt needs no more. Each attempt is a new one of `make`. One that failed
/// must throw std::bad_alloc or c10::Error and leave everything unchanged; it
/// is then repeated with all the memory, and must succeed.
///
/// Attempts run in separate processes, so that those that end the process can
/// be counted. The program has to link failing_allocations.cpp, which replaces
/// `operator new`.
FailedAllocations fail_each_allocation(
    const std::function<Attempt()>& make,
    const Failures& failures = {});

/// Leaves out LibTorch's faults: those with one of `known` in their texts.
void remove_faults_of_libtorch(
    FailedAllocations& result,
    const std::vector<std::string>& known);

/// Faults of LibTorch's graphs: destructors that allocate, in 2.15 that of a
/// node, a thread that catches nothing, and exceptions of oneDNN.
inline std::vector<std::string> faults_of_graphs() {
  return {
      "torch::autograd::deleteNode",
      "operator new(unsigned long)\n    torch::autograd::Node::~Node()",
      "Engine::reentrant_thread_init",
      "another exception: could not create a"};
}

} // namespace torch_attention::testing
