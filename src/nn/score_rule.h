#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <ostream>
#include <type_traits>

namespace torch_attention::detail {

/// Calls `visit(name, value)` for each field of a rule, with the name of its
/// option; `rule` is a ScoreRule or const ScoreRule.
template <typename Rule, typename Visit>
void visit_rule(Rule& rule, const Visit& visit) {
  // Names all fields, so that none is forgotten.
  auto& [scale, softcap, causal, window, window_after, chunk] = rule;
  visit("softcap", softcap);
  visit("scale", scale);
  visit("causal", causal);
  visit("window", window);
  visit("window_after", window_after);
  visit("chunk", chunk);
}

/// Prints the fields that are set, except `causal`, which each module prints
/// with its flags.
inline void print_rule(std::ostream& stream, const ScoreRule& rule) {
  visit_rule(rule, [&](const char* name, const auto& value) {
    if constexpr (!std::is_same_v<decltype(value), const bool&>) {
      if (value) {
        stream << ", " << name << "=" << *value;
      }
    }
  });
}

} // namespace torch_attention::detail
