#pragma once

#include <torch_attention/nn/functional/attention.h>

namespace torch_attention {

/// What `module` asks of functional attention, but for the kernel.
template <typename Module>
functional::ScaledDotProductAttentionFuncOptions func_options(
    const Module& module) {
  return functional::ScaledDotProductAttentionFuncOptions()
      .causal(module.options.causal())
      .window(module.options.window())
      .window_after(module.options.window_after())
      .scale(module.options.scale())
      .dropout(module.dropout->options.p())
      .training(module.dropout->is_training());
}

} // namespace torch_attention
