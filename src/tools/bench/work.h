#pragma once

#include <cstdint>
#include <optional>

namespace torch_attention::tools {

/// What is computed: causal self-attention in float32, alone or in a module.
/// Sizes: B batch, T tokens, C channels, H heads, D head_dim, S keys.
struct Work {
  int64_t B = 1;
  int64_t T = 1;
  /// Keys, the last T of which are those of the tokens; the others are cached.
  /// 0: T.
  int64_t S = 0;
  /// Of the module's input; 0 for attention alone.
  int64_t C = 0;
  int64_t H = 1;
  int64_t D = 1;
  /// Whether the module projects the concatenated heads.
  bool out_proj = true;
  double dropout = 0;
  std::optional<int64_t> window;
  /// Whether the gradients of input and weights are computed as well.
  bool backward = false;

  bool is_module() const {
    return C > 0;
  }

  /// FLOPs that the result needs, a multiplication and an addition as two. Of
  /// the scores only those that causality and the window leave visible count:
  /// a kernel that computes the hidden half too gains nothing by it. Softmax
  /// and dropout count as nothing. A backward pass of attention counts as five
  /// products to the two of the forward pass, since no (T, T) tensor is kept
  /// and the scores are computed anew (as in Dao et al. 2022); one of a
  /// projection as two to one.
  double flops() const;

  /// Bytes of what has to be read and written in memory at least: inputs and
  /// output, and with backward their gradients.
  double bytes() const;
};

} // namespace torch_attention::tools
