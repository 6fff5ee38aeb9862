#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace torch_attention {

/// Which two elements of a head are rotated together, of `dim` that are.
/// Weights are trained for one of them: the other gives other results.
enum class RotaryPairing {
  /// i and i + dim / 2: GPT-NeoX, and Llama and most others as `transformers`
  /// has them.
  kHalves,
  /// 2 i and 2 i + 1: the paper, GPT-J, and Llama as Meta has it.
  kInterleaved,
};

/// Prints `halves` or `interleaved`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    RotaryPairing pairing);

/// Options for rotary position embedding (Su et al. 2021, "RoFormer: Enhanced
/// Transformer with Rotary Position Embedding").
///
/// Example:
/// ```
/// MultiHeadAttention attention(
///     MultiHeadAttentionOptions(4096, 4096, 8192, 32)
///         .num_kv_heads(8)
///         .rotary(RotaryOptions().theta(500000)));
/// ```
struct TORCH_ATTENTION_API RotaryOptions {
  /// pair i of a token at position p is rotated by p / theta^(2 i / dim).
  /// Default: 10000
  TORCH_ARG(double, theta) = 10000.0;

  /// number of leading elements of each head that are rotated, even.
  /// Default: head_dim
  TORCH_ARG(std::optional<int64_t>, dim) = std::nullopt;

  /// which two elements are rotated together. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;

  /// divides the positions (position interpolation, Chen et al. 2023), for
  /// contexts longer than the model was trained for. Default: 1
  TORCH_ARG(double, factor) = 1.0;
};

} // namespace torch_attention
