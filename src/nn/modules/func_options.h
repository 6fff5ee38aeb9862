#pragma once

#include <torch_attention/nn/functional/attention.h>

namespace torch_attention {

/// Returns the options of functional attention for `module`, except the kernel.
template <typename Module>
functional::ScaledDotProductAttentionFuncOptions func_options(
    const Module& module) {
  return functional::ScaledDotProductAttentionFuncOptions()
      .rule(module.options.rule())
      .dropout(module.dropout->options.p())
      .training(module.dropout->is_training());
}

} // namespace torch_attention
