#pragma once

#include <support/close.h>
#include <support/test.h>

#include <torch_attention/jit/swap_attention.h>

#include <torch/script.h>

#include <sstream>
#include <string>
#include <utility>

/// Small TorchScript models that attention is swapped in.
namespace torch_attention::testing::scripted {

inline std::string printed(const GraphSwapReport& report) {
  std::ostringstream text;
  text << report;
  return text.str();
}

/// Attention of x (B, T, 8) with itself; `mask` (L, L) is float.
inline torch::jit::Module model(
    const std::string& body,
    const torch::Tensor& mask = torch::ones({9, 9}).triu(1)) {
  torch::jit::Module module("Model");
  module.register_parameter(
      "w", torch::randn({8, 8}).requires_grad_(), /*is_buffer=*/false);
  module.register_buffer("mask", mask);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define("def forward(self, x):\n" + body);
  return module;
}

inline const std::string kScores =
    "    T = x.size(1)\n"
    "    q = torch.matmul(x, self.w)\n"
    "    scores = torch.matmul(q, x.transpose(1, 2))\n";
inline const std::string kMasked = kScores +
    "    hidden = self.mask.to(11)[:T, :T]\n"
    "    scores.masked_fill_(hidden, float('-inf'))\n";
inline const std::string kWeights =
    "    weights = torch.softmax(scores / 2.5, dim=-1)\n";
inline const std::string kOutput = "    return torch.matmul(weights, x)\n";

inline std::string code(torch::jit::Module& module) {
  return module.get_method("forward").graph()->toString();
}

/// Swaps, and compares outputs and gradients with the model as it was.
inline GraphSwapReport check_swapped(torch::jit::Module& module) {
  const auto x = torch::randn({2, 5, 8});
  const auto run = [&] {
    const auto w = module.attr("w").toTensor();
    w.mutable_grad() = torch::Tensor();
    const auto y = module.forward({x}).toTensor();
    y.sin().sum().backward();
    return std::pair(y.detach(), w.grad().clone());
  };
  const auto [output, gradient] = run();
  const auto report = swap_attention(module);
  const auto [new_output, new_gradient] = run();
  CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
  return report;
}

} // namespace torch_attention::testing::scripted
