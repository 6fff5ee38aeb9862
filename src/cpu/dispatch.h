// Include this where all instruction sets have been compiled (HWY_ONCE).
#pragma once

#include <cpu/attention.h>

#include <hwy/highway.h>

#if HWY_TARGETS & HWY_AVX3
#define TORCH_ATTENTION_CASE_AVX512(...) \
  case InstructionSet::kAmxBf16:         \
  case InstructionSet::kAvx512Bf16:      \
  case InstructionSet::kAvx512:          \
    return N_AVX3::__VA_ARGS__;
#else
#define TORCH_ATTENTION_CASE_AVX512(...)
#endif

#if HWY_TARGETS & HWY_AVX2
#define TORCH_ATTENTION_CASE_AVX2(...) \
  case InstructionSet::kAvx2:          \
    return N_AVX2::__VA_ARGS__;
#else
#define TORCH_ATTENTION_CASE_AVX2(...)
#endif

/// Returns a call of the version compiled for the current instruction set.
#define TORCH_ATTENTION_DISPATCH(...)        \
  switch (instruction_set()) {               \
    TORCH_ATTENTION_CASE_AVX512(__VA_ARGS__) \
    TORCH_ATTENTION_CASE_AVX2(__VA_ARGS__)   \
    default:                                 \
      return HWY_NAMESPACE::__VA_ARGS__;     \
  }
