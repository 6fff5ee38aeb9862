#pragma once

#include <cpu/attention.h>

#include <cstdint>

/// A linear layer of few tokens, at the speed at which memory gives its weight.
namespace torch_attention::cpu {

/// output = input W^T + bias, of at least 4 numbers. X is float, BFloat16 or
/// Float16; sums are float's.
template <typename X>
struct Linear {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  const X* input = nullptr; // (rows, in), contiguous
  const X* weight = nullptr; // (out, in), contiguous
  const X* bias = nullptr; // (out) or null
  X* output = nullptr; // (rows, out), contiguous
};

template <typename X>
void linear(const Linear<X>& layer, const Threads& threads);

} // namespace torch_attention::cpu
