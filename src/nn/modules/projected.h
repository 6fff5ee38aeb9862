#pragma once

#include <kernels/choice.h>
#include <kernels/linear.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace torch_attention {

/// An input after the three projections.
struct Projected {
  torch::Tensor queries;
  torch::Tensor keys;
  torch::Tensor values;
};

/// A linear layer from `in` to `out` features.
inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

/// With `Kernel::kReference` Python's `torch.nn.functional.linear`. (LibTorch's
/// C++ `Linear::forward` multiplies and then adds the bias, which rounds
/// otherwise in bfloat16.)
inline torch::Tensor linear_of(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    Kernel kernel) {
  return kernels::resolved(kernel) == Kernel::kReference
      ? torch::linear(x, weight, bias)
      : kernels::linear(x, weight, bias);
}

/// `linear_of` the module's own weights.
inline torch::Tensor linear(
    const torch::nn::Linear& module,
    const torch::Tensor& x,
    Kernel kernel) {
  return linear_of(x, module->weight, module->bias, kernel);
}

/// Projects x in the Python classes' order, keys first: it decides in which
/// order autograd adds the three gradients of x, hence their last bits.
template <typename Module>
Projected project_linear(
    Module& module,
    const torch::Tensor& x,
    Kernel kernel) {
  Projected projected;
  projected.keys = linear(module.W_key, x, kernel);
  projected.queries = linear(module.W_query, x, kernel);
  projected.values = linear(module.W_value, x, kernel);
  return projected;
}

} // namespace torch_attention
