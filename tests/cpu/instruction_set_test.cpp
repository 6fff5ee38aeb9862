#include <cpu/test.h>

#include <cstdlib>

namespace instruction_set_test {

using namespace torch_attention::cpu;

TEST_CASE(
    "The instruction set is the fastest that the environment allows",
    "[.instruction_set]") {
  // Hidden, since other tests set one.
  const auto* value = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string allowed = value == nullptr ? "" : value;
  auto expected = InstructionSet::kPortable;
  const auto allow = [&](InstructionSet set) {
    if (is_supported(set)) {
      expected = set;
    }
  };
  allow(InstructionSet::kNeon);
  if (allowed != "default") {
    allow(InstructionSet::kNeonBf16);
    allow(InstructionSet::kAvx2);
    if (allowed != "avx2") {
      allow(InstructionSet::kAvx512);
      if (allowed != "avx512") {
        allow(InstructionSet::kAvx512Bf16);
        const auto* isa = std::getenv("ONEDNN_MAX_CPU_ISA");
        if (isa == nullptr || std::string(isa) != "AVX512_CORE_BF16") {
          allow(InstructionSet::kAmxBf16);
        }
      }
    }
  }
  CHECK(instruction_set() == expected);
}

} // namespace instruction_set_test
