#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace torch_attention::benchmarks {

/// A computation: self-attention, alone or in a module. Sizes: B batch, T
/// tokens, C channels, H heads, D head_dim, S keys, G heads of keys.
struct Work {
  int64_t B = 1;
  int64_t T = 1;
  /// Number of keys. The last T belong to the tokens; the others are cached. 0:
  /// T.
  int64_t S = 0;
  /// Channels of the module's input; 0: attention alone.
  int64_t C = 0;
  int64_t H = 1;
  /// Heads of keys, each for a group of the H; 0: H.
  int64_t G = 0;
  int64_t D = 1;
  torch::ScalarType dtype = torch::kFloat;
  /// True if tokens see no later ones.
  bool causal = true;
  /// True if the module projects the concatenated heads.
  bool out_proj = true;
  double dropout = 0;
  std::optional<int64_t> window;
  /// True if the gradients of input and weights are computed as well.
  bool backward = false;

  bool is_module() const {
    return C > 0;
  }

  int64_t num_keys() const {
    return S > 0 ? S : T;
  }

  int64_t num_key_heads() const {
    return G > 0 ? G : H;
  }

  /// Returns the FLOPs that the result needs; a multiplication and an addition
  /// count as two. Only the scores that causality and the window leave visible
  /// count: a kernel that also computes the hidden half gains nothing by it.
  /// Softmax and dropout count as nothing. A backward pass of attention counts
  /// as five products, a forward pass as two, since no (T, T) tensor is kept
  /// and the scores are computed again (as in Dao et al. 2022); a backward pass
  /// of a projection counts as two, its forward pass as one.
  double flops() const;

  /// Returns the bytes that must be read and written in memory at least: inputs
  /// and output, and with backward their gradients.
  double bytes() const;

  /// Returns the bytes of keys and values, read once; with backward read once
  /// more, and their gradients written.
  double key_bytes() const;
};

/// Returns causal attention alone of T tokens to themselves.
Work attention_work(int64_t B, int64_t H, int64_t T, int64_t D);

} // namespace torch_attention::benchmarks
