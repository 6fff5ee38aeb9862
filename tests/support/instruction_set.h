#pragma once

#include <cpu/attention.h>

#include <algorithm>

namespace torch_attention::testing {

/// While it lives, the kernels compute as on a processor with no more than
/// this.
class WithInstructionSet {
 public:
  explicit WithInstructionSet(cpu::InstructionSet most) {
    const auto set = std::min(most, before_);
    if (cpu::is_supported(set)) {
      cpu::set_instruction_set(set);
    }
  }
  WithInstructionSet(const WithInstructionSet&) = delete;
  WithInstructionSet& operator=(const WithInstructionSet&) = delete;
  WithInstructionSet(WithInstructionSet&&) = delete;
  WithInstructionSet& operator=(WithInstructionSet&&) = delete;
  ~WithInstructionSet() {
    cpu::set_instruction_set(before_);
  }

 private:
  cpu::InstructionSet before_ = cpu::instruction_set();
};

} // namespace torch_attention::testing
