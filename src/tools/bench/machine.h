#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Where the figures of a run come from.
struct Machine {
  /// The processor, in its maker's words.
  std::string cpu;
  /// Of the instruction sets that matter for attention, those it has.
  std::vector<std::string> instruction_sets;
  /// The one that LibTorch chose: "AVX2", "AVX512", ...
  std::string libtorch_instruction_set;
  std::string libtorch;
  std::string torch_attention;
  /// Threads that the processor has, and those that LibTorch uses.
  int64_t cores = 0;
  int64_t threads = 0;
};

Machine this_machine();

} // namespace torch_attention::tools
