#pragma once

#include <torch/torch.h>

#include <vector>

/// Copies weights from a document's layers into a module.
namespace torch_attention::testing {

inline void copy_linear(
    const torch::nn::Linear& from,
    const torch::nn::Linear& to) {
  const torch::NoGradGuard no_grad;
  to->weight.copy_(from->weight);
  if (to->bias.defined()) {
    to->bias.copy_(from->bias);
  }
}

/// Copies layers of single heads into the layer of all heads, in their order.
inline void stack_linears(
    const std::vector<torch::nn::Linear>& from,
    const torch::nn::Linear& to) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> biases;
  for (const auto& linear : from) {
    weights.push_back(linear->weight);
    biases.push_back(linear->bias);
  }
  to->weight.copy_(torch::cat(weights, 0));
  if (to->bias.defined()) {
    to->bias.copy_(torch::cat(biases, 0));
  }
}

} // namespace torch_attention::testing
