#pragma once

#include <cpu/attention.h>

#include <cstdint>
#include <vector>

/// Linear layers of few tokens, as fast as memory delivers their weights.
namespace torch_attention::cpu {

/// The input of linear layers. X is float, BFloat16 or Float16.
template <typename X>
struct LinearInput {
  int64_t rows = 0;
  int64_t in = 0;
  const X* data = nullptr; // (rows, in), contiguous
  /// Whether each output is a sum in one order, however many rows there are.
  bool in_order = false;
};

/// output = input W^T + bias, with at least 4 outputs; sums are in float.
template <typename X>
struct LinearLayer {
  int64_t out = 0;
  const X* weight = nullptr; // (out, in), contiguous
  const X* bias = nullptr; // (out) or null
  X* output = nullptr; // (rows, out), contiguous
};

/// Computes all layers as one set of tasks.
template <typename X>
void linear(
    const LinearInput<X>& input,
    const std::vector<LinearLayer<X>>& layers,
    const Threads& threads);

} // namespace torch_attention::cpu
