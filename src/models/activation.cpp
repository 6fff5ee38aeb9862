#include <models/activation.h>

#include <check.h>

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace torch_attention::models {

namespace {

using Activation = torch::Tensor (*)(const torch::Tensor&);

struct NamedActivation {
  std::string_view name;
  Activation function;
};

torch::Tensor exact_gelu(const torch::Tensor& x) {
  return at::gelu(x);
}

torch::Tensor tanh_gelu(const torch::Tensor& x) {
  return at::gelu(x, "tanh");
}

torch::Tensor silu(const torch::Tensor& x) {
  return at::silu(x);
}

torch::Tensor relu(const torch::Tensor& x) {
  return at::relu(x);
}

constexpr std::array<NamedActivation, 7> kActivations{
    {{"gelu", exact_gelu},
     {"gelu_new", tanh_gelu},
     {"gelu_python", exact_gelu},
     {"gelu_pytorch_tanh", tanh_gelu},
     {"relu", relu},
     {"silu", silu},
     {"swish", silu}}};

Activation activation_named(const std::string& name) {
  const auto* const found = std::find_if(
      kActivations.begin(), kActivations.end(), [&](const auto& activation) {
        return activation.name == name;
      });
  TORCH_ATTENTION_CHECK(
      found != kActivations.end(),
      "expected the activation gelu, gelu_new, gelu_pytorch_tanh, silu or "
      "relu, but got \"{}\"",
      name);
  return found->function;
}

} // namespace

torch::Tensor activate(const std::string& name, const torch::Tensor& x) {
  return activation_named(name)(x);
}

void check_activation(const std::string& name) {
  activation_named(name);
}

} // namespace torch_attention::models
