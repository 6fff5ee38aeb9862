#include <cpu/test.h>

#include <cstdlib>

namespace instruction_set_test {

using namespace torch_attention::cpu;

TEST_CASE(
    "The instruction set is the fastest that the environment allows",
    "[.instruction_set]") {
  // Hidden, since other tests set one.
  const auto* value = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string allowed = value == nullptr ? "avx512" : value;
  auto expected = InstructionSet::kPortable;
  if (allowed != "default" && is_supported(InstructionSet::kAvx2)) {
    expected = InstructionSet::kAvx2;
  }
  if (allowed == "avx512" && is_supported(InstructionSet::kAvx512)) {
    expected = InstructionSet::kAvx512;
  }
  CHECK(instruction_set() == expected);
}

} // namespace instruction_set_test
