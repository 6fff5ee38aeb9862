#include <cpu/targets.h>

#include <hwy/highway.h>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <string>

// No AMX where the assembler is too old for it.
#if HWY_ARCH_X86 && defined(__linux__) && !defined(TORCH_ATTENTION_NO_AMX)
#define TORCH_ATTENTION_ASKS_FOR_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace torch_attention::cpu {

namespace {

std::string variable(const char* name) {
  const auto* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns whether oneDNN, by which LibTorch multiplies bfloat16, may use AMX.
bool allows_amx() {
  auto allowed = variable("ONEDNN_MAX_CPU_ISA");
  for (auto& c : allowed) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const bool lower =
      allowed.rfind("sse", 0) == 0 || allowed.rfind("avx", 0) == 0;
  return !lower || allowed.find("amx") != std::string::npos ||
      allowed.rfind("avx10", 0) == 0;
}

/// Returns what the user allows, by the variables that LibTorch's kernels obey.
InstructionSet most_allowed() {
  const auto allowed = variable("ATEN_CPU_CAPABILITY");
  return allowed == "default" ? InstructionSet::kPortable
      : allowed == "avx2"     ? InstructionSet::kAvx2
      : allowed == "avx512"   ? InstructionSet::kAvx512
      : allows_amx()          ? InstructionSet::kAmxBf16
                              : InstructionSet::kAvx512Bf16;
}

#if defined(TORCH_ATTENTION_ASKS_FOR_TILES)
/// Returns whether the processor has AMX tiles of bfloat16, and the system
/// grants this process, once, the memory to save them.
bool may_use_tiles() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  constexpr unsigned int kBf16 = 1U << 22U;
  constexpr unsigned int kTiles = 1U << 24U;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kBf16) == 0 || (edx & kTiles) == 0) {
    return false;
  }
  // ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA. Fails where the system does not
  // save tiles.
  constexpr int kRequest = 0x1023;
  constexpr int kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
}
#endif

InstructionSet fastest() {
  const auto most = most_allowed();
  for (const auto set :
       {InstructionSet::kAmxBf16,
        InstructionSet::kAvx512Bf16,
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
  const bool pairs = (HWY_TARGETS & HWY_AVX3) != 0 && avx512 &&
      __builtin_cpu_supports("avx512bf16");
  if (set == InstructionSet::kAvx512Bf16) {
    return pairs;
  }
#if defined(TORCH_ATTENTION_ASKS_FOR_TILES)
  if (set == InstructionSet::kAmxBf16) {
    return pairs && may_use_tiles();
  }
#endif
#endif
  // Where all of the library is compiled for a higher set, it has no other.
  return set == InstructionSet::kPortable &&
      (HWY_TARGETS & ~(HWY_AVX2 | HWY_AVX3)) != 0;
}

InstructionSet instruction_set() {
  return current().load(std::memory_order_relaxed);
}

void set_instruction_set(InstructionSet set) {
  current().store(set, std::memory_order_relaxed);
}

} // namespace torch_attention::cpu
