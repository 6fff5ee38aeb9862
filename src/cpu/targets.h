// The targets that Highway compiles the kernels for. Include it before any of
// Highway's headers.
#pragma once

// Two sets of instructions and a fallback; between them are only machines older
// than 2013.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
// Header-only: no call of Highway's library, which has the debug build's abort.
#define HWY_IS_DEBUG_BUILD 0
// GCC 12.2 miscompiles 16-bit MulHigh (GCC bug 106322), which is not used here.
#define HWY_BROKEN_EMU128 0

#include <cpu/attention.h>
