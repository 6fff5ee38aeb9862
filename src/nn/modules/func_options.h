#pragma once

#include <nn/score_rule.h>
#include <torch_attention/nn/functional/attention.h>

namespace torch_attention {

/// Returns what `module` asks of functional attention by its options, but for
/// the kernel.
template <typename Module>
functional::ScaledDotProductAttentionFuncOptions func_options(
    const Module& module) {
  auto result = functional::ScaledDotProductAttentionFuncOptions()
                    .dropout(module.dropout->options.p())
                    .training(module.dropout->is_training());
  detail::copy_rule_options(module.options, result);
  return result;
}

} // namespace torch_attention
