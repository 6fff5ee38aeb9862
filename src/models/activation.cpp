#include <models/activation.h>

#include <check.h>
#include <elementwise.h>
#include <format_text.h>

#include <ATen/ops/erf.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

namespace torch_attention::models {

namespace {

using torch::Tensor;
using Activation = Tensor (*)(const Tensor&);

struct NamedActivation {
  std::string_view name;
  Activation function;
};

Tensor exact_gelu(const Tensor& x) {
  return at::gelu(x);
}

Tensor tanh_gelu(const Tensor& x) {
  return at::gelu(x, "tanh");
}

Tensor clipped_gelu(const Tensor& x) {
  return at::gelu(x).clamp(-10, 10);
}

Tensor hardswish(const Tensor& x) {
  return at::hardswish(x);
}

/// Approximates the squared ReLU (Ma et al. 2022, "Mega").
Tensor laplace(const Tensor& x) {
  constexpr double kMean = 0.707107;
  constexpr double kDeviation = 0.282095;
  return 0.5 * (1 + at::erf((x - kMean) / (kDeviation * std::sqrt(2.0))));
}

Tensor leaky_relu(const Tensor& x) {
  return at::leaky_relu(x);
}

Tensor linear(const Tensor& x) {
  return x;
}

Tensor mish(const Tensor& x) {
  return at::mish(x);
}

Tensor quick_gelu(const Tensor& x) {
  return x * at::sigmoid(1.702 * x);
}

Tensor relu(const Tensor& x) {
  return at::relu(x);
}

Tensor squared_relu(const Tensor& x) {
  return at::relu(x).square();
}

Tensor relu6(const Tensor& x) {
  return at::relu6(x);
}

Tensor sigmoid(const Tensor& x) {
  return at::sigmoid(x);
}

Tensor silu(const Tensor& x) {
  return at::silu(x);
}

Tensor tanh(const Tensor& x) {
  return at::tanh(x);
}

/// The names of transformers without those whose functions have parameters.
constexpr std::array<NamedActivation, 21> kActivations{
    {{"gelu", exact_gelu},
     {"gelu_10", clipped_gelu},
     {"gelu_accurate", tanh_gelu},
     {"gelu_fast", tanh_gelu},
     {"gelu_new", tanh_gelu},
     {"gelu_python", exact_gelu},
     {"gelu_python_tanh", tanh_gelu},
     {"gelu_pytorch_tanh", tanh_gelu},
     {"hardswish", hardswish},
     {"laplace", laplace},
     {"leaky_relu", leaky_relu},
     {"linear", linear},
     {"mish", mish},
     {"quick_gelu", quick_gelu},
     {"relu", relu},
     {"relu2", squared_relu},
     {"relu6", relu6},
     {"sigmoid", sigmoid},
     {"silu", silu},
     {"swish", silu},
     {"tanh", tanh}}};

std::string names() {
  std::vector<std::string_view> all;
  for (const auto& activation : kActivations) {
    all.push_back(activation.name);
  }
  return format_text("{}", fmt::join(all, ", "));
}

Activation activation_named(const std::string& name) {
  const auto* const found = std::find_if(
      kActivations.begin(), kActivations.end(), [&](const auto& activation) {
        return activation.name == name;
      });
  TORCH_ATTENTION_CHECK(
      found != kActivations.end(),
      "expected an activation of {}, but got \"{}\"",
      names(),
      name);
  return found->function;
}

} // namespace

Tensor activate(const std::string& name, const Tensor& x) {
  return by_rows(x, activation_named(name));
}

void check_activation(const std::string& name) {
  activation_named(name);
}

} // namespace torch_attention::models
