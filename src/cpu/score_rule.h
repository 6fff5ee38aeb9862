#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace torch_attention::cpu {

/// How a raw score becomes an input of the softmax.
/// Rules with tensors (bias, mask, slopes, lengths, offsets) are passed next to
/// it. Options fill it in (nn/score_rule.h), and everything that computes
/// attention passes it on whole.
///
/// A new rule extends the predicates below, by which kernels without it
/// decline, and is computed in two places: by our kernels (`head_rule`,
/// `Visibility`, scores-inl.h) and by tensor operators, which make LibTorch's
/// masks as well (`weights_of_scores`, positions.cpp). `head_rule` and the
/// operators destructure the struct, and so do not compile without the rule.
struct ScoreRule {
  /// Multiplies the product of query and key. Default: 1 / sqrt(head_dim)
  std::optional<double> scale;
  /// > 0: scores become softcap * tanh(score / softcap).
  double softcap = 0.0;
  /// Hides the keys after a query's own position.
  bool causal = false;
  /// Hides the keys `window` or more positions before a query's own. 0: none.
  int64_t window = 0;
  /// Hides the keys more than this after a query's own position. < 0: none.
  int64_t window_after = -1;
  /// Hides the keys of other chunks than a query's own: positions are split
  /// into chunks of this size, from 0 on. 0: none.
  int64_t chunk = 0;

  /// Returns the factor of products of `head_dim` numbers.
  double factor(int64_t head_dim) const {
    return scale ? *scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }

  /// Returns whether a softcap is applied.
  bool has_softcap() const {
    return softcap > 0;
  }

  /// Returns whether scores get a bias by the positions of query and key.
  bool adds() const {
    return false;
  }

  /// Returns whether keys are hidden by their positions.
  bool hides() const {
    return causal || window > 0 || window_after >= 0 || chunk > 0;
  }

  /// Returns whether the rule only scales and hides the keys after a query's
  /// own position.
  bool is_only_causal() const {
    return causal && window == 0 && window_after < 0 && chunk == 0 &&
        !has_softcap() && !adds();
  }
};

} // namespace torch_attention::cpu
