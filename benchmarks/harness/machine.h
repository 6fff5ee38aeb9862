#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The machine on which the figures of a run were measured.
struct Machine {
  /// The processor, in its maker's words.
  std::string cpu;
  /// The instruction sets that it has, of those that matter for attention.
  std::vector<std::string> instruction_sets;
  /// The instruction set that LibTorch chose: "AVX2", "AVX512", ...
  std::string libtorch_instruction_set;
  std::string libtorch;
  std::string torch_attention;
  /// The threads of the processor, and those that LibTorch uses.
  int64_t cores = 0;
  int64_t threads = 0;
  /// Threads of the processor that other programs used before the run.
  double busy = 0;
};

Machine this_machine();

/// Processor time since the start of the system, in ticks: its work, and all.
struct ProcessorTime {
  double busy = 0;
  double all = 0;
};

/// Reads the first line of /proc/stat. Time that a hypervisor gave to others
/// counts as busy. Returns zeros for another text.
ProcessorTime processor_time_of(const std::string& stat);

/// Returns how many threads of the processor are busy while this program
/// sleeps for a moment.
double busy_threads();

} // namespace torch_attention::benchmarks
