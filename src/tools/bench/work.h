#pragma once

#include <cstdint>
#include <optional>

namespace torch_attention::tools {

/// A computation: causal self-attention in float32, alone or in a module.
/// Sizes: B batch, T tokens, C channels, H heads, D head_dim, S keys.
struct Work {
  int64_t B = 1;
  int64_t T = 1;
  /// Number of keys. The last T belong to the tokens; the others are cached. 0:
  /// T.
  int64_t S = 0;
  /// Channels of the module's input; 0: attention alone.
  int64_t C = 0;
  int64_t H = 1;
  int64_t D = 1;
  /// True if the module projects the concatenated heads.
  bool out_proj = true;
  double dropout = 0;
  std::optional<int64_t> window;
  /// True if the gradients of input and weights are computed as well.
  bool backward = false;

  bool is_module() const {
    return C > 0;
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
};

} // namespace torch_attention::tools
