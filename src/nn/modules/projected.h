#pragma once

#include <kernels/linear.h>
#include <torch_attention/nn/functional/attention.h>
#include <undrawn_weights.h>

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace torch_attention {

/// Queries, keys and values after the projections.
struct Projected {
  torch::Tensor queries;
  torch::Tensor keys;
  torch::Tensor values;
};

/// Computes `kernels::linear` with the weights of a module.
inline torch::Tensor linear(
    const torch::nn::Linear& module,
    const torch::Tensor& x,
    Kernel kernel) {
  return kernels::linear(x, module->weight, module->bias, kernel);
}

inline kernels::LinearLayer layer_of(const torch::nn::Linear& module) {
  return {module->weight, module->bias};
}

/// Projects x in the Python classes' order, keys first: in this order autograd
/// adds the three gradients of x, which affects their last bits.
template <typename Module>
Projected project_linear(
    Module& module,
    const torch::Tensor& x,
    Kernel kernel) {
  const auto outputs = kernels::linear_each(
      x,
      {layer_of(module.W_key),
       layer_of(module.W_query),
       layer_of(module.W_value)},
      kernel);
  return {outputs[1], outputs[0], outputs[2]};
}

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
