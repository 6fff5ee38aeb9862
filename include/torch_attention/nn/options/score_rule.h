#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace torch_attention {

/// How a raw score, the product of a query and a key, becomes an input of the
/// softmax: the rules that are numbers. Rules with tensors (bias, mask, ALiBi
/// slopes, sinks, lengths) are options of their own.
///
/// The options of functions and modules hold one, `rule()`, and pass it on
/// whole to the kernels. `RuleOptions` documents each rule.
///
/// Example:
/// ```
/// ScoreRule rule;
/// rule.softcap = 50;
/// options.rule(rule);
/// ```
struct ScoreRule {
  std::optional<double> scale;
  std::optional<double> softcap;
  bool causal = false;
  std::optional<int64_t> window;
  std::optional<int64_t> window_after;
  std::optional<int64_t> chunk;

  /// Returns the rule that hides later keys, otherwise with the defaults.
  static ScoreRule make_causal() {
    ScoreRule rule;
    rule.causal = true;
    return rule;
  }

  /// Returns the factor of products of `head_dim` numbers.
  double factor(int64_t head_dim) const {
    return scale ? *scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }

  /// Returns whether scores are products times a factor: there is no softcap.
  bool is_linear() const {
    return !softcap;
  }

  /// Returns whether keys are hidden by their positions.
  bool hides_keys() const {
    return causal || window || window_after || chunk;
  }

  /// Returns whether the rule only scales and hides the keys after a query's
  /// own position.
  bool is_only_causal() const {
    return causal && !window && !window_after && !chunk && is_linear();
  }

  /// Returns the rule without what hides keys.
  ScoreRule without_positions() const {
    ScoreRule rule;
    rule.scale = scale;
    rule.softcap = softcap;
    return rule;
  }
};

/// Returns whether both rules have the same numbers.
inline bool operator==(const ScoreRule& a, const ScoreRule& b) {
  return a.scale == b.scale && a.softcap == b.softcap && a.causal == b.causal &&
      a.window == b.window && a.window_after == b.window_after &&
      a.chunk == b.chunk;
}

inline bool operator!=(const ScoreRule& a, const ScoreRule& b) {
  return !(a == b);
}

} // namespace torch_attention
