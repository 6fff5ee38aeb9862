#include <cpu/targets.h>

#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace torch_attention::cpu {

namespace {

/// Returns what the user allows, by the variable that LibTorch's kernels obey.
InstructionSet most_allowed() {
  const auto* value = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string allowed = value == nullptr ? "" : value;
  return allowed == "default" ? InstructionSet::kPortable
      : allowed == "avx2"     ? InstructionSet::kAvx2
      : allowed == "avx512"   ? InstructionSet::kAvx512
                              : InstructionSet::kAvx512Bf16;
}

InstructionSet fastest() {
  const auto most = most_allowed();
  for (const auto set :
       {InstructionSet::kAvx512Bf16,
        InstructionSet::kAvx512,
        InstructionSet::kAvx2}) {
    if (set <= most && is_supported(set)) {
      return set;
    }
  }
  return InstructionSet::kPortable;
}

std::atomic<InstructionSet>& current() {
  static std::atomic<InstructionSet> set{fastest()};
  return set;
}

} // namespace

bool is_supported(InstructionSet set) {
#if HWY_ARCH_X86
  const bool avx2 = __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (set == InstructionSet::kAvx2) {
    return (HWY_TARGETS & HWY_AVX2) != 0 && avx2;
  }
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (set == InstructionSet::kAvx512) {
    return (HWY_TARGETS & HWY_AVX3) != 0 && avx512;
  }
  if (set == InstructionSet::kAvx512Bf16) {
    return (HWY_TARGETS & HWY_AVX3) != 0 && avx512 &&
        __builtin_cpu_supports("avx512bf16");
  }
#endif
  return set == InstructionSet::kPortable;
}

InstructionSet instruction_set() {
  return current().load(std::memory_order_relaxed);
}

void set_instruction_set(InstructionSet set) {
  current().store(set, std::memory_order_relaxed);
}

} // namespace torch_attention::cpu
