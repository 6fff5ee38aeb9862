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

#if HWY_ARCH_ARM_A64
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#if HWY_ARCH_X86 && defined(HWY_COMPILE_ONLY_STATIC)
static_assert(
    HWY_STATIC_TARGET != HWY_EMU128,
    "The options of the compiler leave plain loops in place of vectors");
#endif

namespace torch_attention::cpu {

namespace {

std::string variable(const char* name) {
  const auto* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

#if HWY_ARCH_ARM_A64

/// Returns what the user allows, by the variable that LibTorch's kernels obey.
InstructionSet most_allowed() {
  return variable("ATEN_CPU_CAPABILITY") == "default"
      ? InstructionSet::kNeon
      : InstructionSet::kNeonBf16;
}

/// Returns whether the processor has products of bfloat16 (FEAT_BF16).
bool has_products_of_bfloat16() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1UL << 14U; // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) ==
      0 &&
      has != 0;
#else
  return false;
#endif
}

#else

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

#endif

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
       {InstructionSet::kNeonBf16,
        InstructionSet::kNeon,
        InstructionSet::kAmxBf16,
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

#if HWY_ARCH_ARM_A64

bool is_supported(InstructionSet set) {
  static const bool pairs = has_products_of_bfloat16();
  return set == InstructionSet::kNeon ||
      (set == InstructionSet::kNeonBf16 && pairs);
}

#else

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
      __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vnni");
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

#endif

InstructionSet instruction_set() {
  return current().load(std::memory_order_relaxed);
}

void set_instruction_set(InstructionSet set) {
  current().store(set, std::memory_order_relaxed);
}

} // namespace torch_attention::cpu
