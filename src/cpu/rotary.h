#pragma once

#include <cpu/attention.h>

#include <cstdint>

/// Rotary position embedding of the heads of tokens.
namespace torch_attention::cpu {

/// X is float, double, BFloat16 or Float16.
template <typename X>
struct RotaryArguments {
  int64_t batch_size = 0;
  int64_t num_heads = 0;
  int64_t num_tokens = 0;
  int64_t head_dim = 0;
  /// Half the number of rotated elements, which are the first of a head. The
  /// others are copied.
  int64_t pairs = 0;
  /// True: number i is paired with i + pairs; else with its neighbour.
  bool by_halves = false;
  Heads<const X> x;
  /// (B, T, pairs), of the angles; those of a token are contiguous
  const Compute<X>* cos = nullptr;
  const Compute<X>* sin = nullptr;
  int64_t table_batch = 0; // distance
  int64_t table_token = 0; // distance
  Heads<X> output;
};

/// Rotates with the roundings of x1 cos - x2 sin and x2 cos + x1 sin by
/// operators in `Compute<X>`; the results are rounded to X.
template <typename X>
void rotate(const RotaryArguments<X>& arguments, const Threads& threads);

} // namespace torch_attention::cpu
