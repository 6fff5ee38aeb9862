// The targets that Highway compiles the kernels for. Include it before any of
// Highway's headers.
#pragma once

// On x86 two sets of instructions and a fallback; between them are only
// machines older than 2013. On ARM64 NEON alone: the kernels keep arrays of
// vectors in registers, and vectors of SVE have no size to make arrays of.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#if defined(__aarch64__) && !defined(HWY_COMPILE_ONLY_STATIC)
// Newer versions of Highway would compile the kernels for three kinds of NEON.
#define HWY_COMPILE_ONLY_STATIC
#endif
// Header-only: no call of Highway's library, which has the debug build's abort.
#define HWY_IS_DEBUG_BUILD 0
// GCC 12.2 miscompiles 16-bit MulHigh (GCC bug 106322), which is not used here.
#define HWY_BROKEN_EMU128 0

// 1 if the target has products of bfloat16 by pairs, which `instruction_set`
// switches on at run time.
#define TORCH_ATTENTION_HAS_PAIRS (HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64)

#include <cpu/attention.h>
