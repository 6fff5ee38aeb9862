#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

namespace torch_attention {

/// The rules, given by numbers, by which the dot product of a query and a key
/// becomes an input of the softmax. Rules with tensors (bias, mask, ALiBi
/// slopes, sinks, lengths) are separate options.
///
/// The options of functions and modules contain one, `rule()`, which the
/// kernels get unchanged. `RuleOptions` documents each field.
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

  /// Returns a rule with `causal` and defaults otherwise.
  static ScoreRule make_causal() {
    ScoreRule rule;
    rule.causal = true;
    return rule;
  }

  /// Returns the factor of dot products of size `head_dim`.
  double factor(int64_t head_dim) const {
    return scale ? *scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }

  /// Returns whether scores are linear in the dot products: no softcap.
  bool is_linear() const {
    return !softcap;
  }

  /// Returns whether keys are hidden by their positions.
  bool hides_keys() const {
    return causal || window || window_after || chunk;
  }

  /// Returns whether the rule is the scale and `causal`, nothing else.
  bool is_only_causal() const {
    return causal && !window && !window_after && !chunk && is_linear();
  }

  /// Returns the rule without the fields that hide keys.
  ScoreRule without_positions() const {
    auto rule = *this;
    // Names all fields, so that a new one does not compile until it is here.
    auto& [scale_, softcap_, causal_, window_, after_, chunk_] = rule;
    std::tie(causal_, window_, after_, chunk_) =
        std::make_tuple(false, std::nullopt, std::nullopt, std::nullopt);
    return rule;
  }
};

/// Returns whether all fields are equal.
inline bool operator==(const ScoreRule& a, const ScoreRule& b) {
  const auto fields = [](const ScoreRule& rule) {
    // Names all fields, so that a new one does not compile until it is here.
    const auto& [scale, softcap, causal, window, after, chunk] = rule;
    return std::tie(scale, softcap, causal, window, after, chunk);
  };
  return fields(a) == fields(b);
}

inline bool operator!=(const ScoreRule& a, const ScoreRule& b) {
  return !(a == b);
}

} // namespace torch_attention
