#pragma once

#include <cpu/attention.h>

#include <cstdint>

/// Root mean square norm of the heads of tokens.
namespace torch_attention::cpu {

/// X is float, double, BFloat16 or Float16.
template <typename X>
struct RmsNormArguments {
  int64_t batch_size = 0;
  int64_t num_heads = 0;
  int64_t num_tokens = 0;
  int64_t head_dim = 0;
  Heads<const X> x;
  /// (H, D), those of a head contiguous; null: none
  const X* weight = nullptr;
  const X* bias = nullptr;
  int64_t head = 0; // distance of weights and biases; 0: all heads share them
  /// Added to each weight.
  double offset = 0;
  double eps = 0;
  Heads<X> output;
};

/// Sets each head of a token to x / sqrt(mean(x^2) + eps) * weight + bias, in
/// `Compute<X>`, rounded once.
template <typename X>
void rms_norm(const RmsNormArguments<X>& arguments, const Threads& threads);

} // namespace torch_attention::cpu
