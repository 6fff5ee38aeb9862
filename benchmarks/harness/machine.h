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
};

Machine this_machine();

} // namespace torch_attention::benchmarks
