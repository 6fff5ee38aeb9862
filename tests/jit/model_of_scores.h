#pragma once

#include <jit/scripted_model.h>

#include <vector>

/// Models of queries, keys, values and a mask.
namespace torch_attention::testing::scripted {

/// A model of q (..., T, 8), k and v whose scores are computed by `scores`.
inline torch::jit::Module model_of_scores(const std::string& scores) {
  torch::jit::Module module("Model");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.register_parameter(
      "learned", torch::tensor(0.5f).requires_grad_(), /*is_buffer=*/false);
  module.define(
      "def forward(self, q, k, v, m):\n"
      "    s = torch.matmul(q, k.transpose(-2, -1))\n" +
      scores +
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  return module;
}

/// Swaps a model of q, k, v and m, checks that the report has `places`, and
/// compares outputs and gradients, also after saving and loading.
inline void check_branches(
    torch::jit::Module module,
    size_t places,
    const std::vector<std::vector<c10::IValue>>& calls) {
  auto swapped = module.clone();
  const auto report = swap_attention(swapped);
  INFO(printed(report));
  CHECK(report.swapped.size() == places);
  CHECK(report.left_alone.empty());
  std::stringstream file;
  swapped.save(file);
  auto loaded = torch::jit::load(file);
  for (const auto& inputs : calls) {
    const auto run = [&](torch::jit::Module& one) {
      const auto q = inputs[0].toTensor().clone().requires_grad_();
      auto arguments = inputs;
      arguments[0] = q;
      const auto y = one.forward(arguments).toTensor();
      return std::pair(
          y.detach(), torch::autograd::grad({y.sin().sum()}, {q})[0]);
    };
    const auto [output, gradient] = run(module);
    for (auto* one : {&swapped, &loaded}) {
      const auto [new_output, new_gradient] = run(*one);
      CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
      CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-5, 1e-5}));
    }
  }
}

} // namespace torch_attention::testing::scripted
