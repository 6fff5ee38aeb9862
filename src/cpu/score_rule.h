#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace torch_attention::cpu {

/// The way of the product of a query and a key to the softmax.
/// Rules that have tensors (bias, mask, slopes, lengths, offsets) come beside
/// it. Options fill it in (nn/score_rule.h), and everything that computes
/// attention carries it whole.
///
/// A rule that is added here says below what it does, by which kernels that
/// cannot do it stand back, and is computed in two places: by our kernels
/// (`head_rule`, `Visibility`, scores-inl.h) and by tensor operators, which
/// LibTorch's masks are made of as well (`weights_of_scores`, positions.cpp).
/// Those take the struct apart, and so do not compile before they know it.
struct ScoreRule {
  /// The product is multiplied by it. Default: 1 / sqrt(head_dim)
  std::optional<double> scale;
  /// > 0: scores become softcap * tanh(score / softcap).
  double softcap = 0.0;
  /// Hides the keys after a query's own position.
  bool causal = false;
  /// Hides the keys `window` or more positions before a query's own. 0: none.
  int64_t window = 0;
  /// Hides the keys more than so many positions after a query's own. < 0: none.
  int64_t window_after = -1;
  /// Hides the keys of other chunks than a query's own: positions are cut into
  /// chunks of that many, from 0 on. 0: none.
  int64_t chunk = 0;

  /// The factor of products of `head_dim` numbers.
  double factor(int64_t head_dim) const {
    return scale ? *scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }

  /// Returns whether scores change by their value, after the scale.
  bool bends() const {
    return softcap > 0;
  }

  /// Returns whether something is added to scores by the positions of query and
  /// key.
  bool adds() const {
    return false;
  }

  /// Returns whether keys are hidden by their positions.
  bool hides() const {
    return causal || window > 0 || window_after >= 0 || chunk > 0;
  }

  /// Returns whether it hides the keys after a query's own position and does
  /// nothing else but scale.
  bool is_only_causal() const {
    return causal && window == 0 && window_after < 0 && chunk == 0 &&
        !bends() && !adds();
  }
};

} // namespace torch_attention::cpu
