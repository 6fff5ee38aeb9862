#pragma once

#include <cpu/score_rule.h>

namespace torch_attention {

/// Returns the rule that options ask for, those of functions and of modules
/// alike.
template <typename Options>
cpu::ScoreRule rule_of(const Options& options) {
  cpu::ScoreRule rule;
  rule.scale = options.scale();
  rule.softcap = options.softcap().value_or(0);
  rule.causal = options.causal();
  rule.window = options.window().value_or(0);
  rule.window_after = options.window_after().value_or(-1);
  rule.chunk = options.chunk().value_or(0);
  return rule;
}

} // namespace torch_attention
