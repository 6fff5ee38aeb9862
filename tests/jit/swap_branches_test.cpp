// Attention whose scores change in branches, in loops and in place.

#include <jit/model_of_scores.h>

namespace torch_attention {
namespace swap_branches_test {

using namespace testing::scripted;
using testing::IsCloseTo;

/// Compares outputs and gradients of the first input at three calls: at the
/// third TorchScript compiles gradients of its own.
void check_same_at_calls(
    torch::jit::Module& module,
    torch::jit::Module& swapped,
    std::vector<torch::Tensor> inputs) {
  inputs[0].requires_grad_();
  const auto run = [&](torch::jit::Module& one) {
    const auto y = one.forward({inputs.begin(), inputs.end()}).toTensor();
    return std::pair(
        y.detach(), torch::autograd::grad({y.sin().sum()}, {inputs[0]})[0]);
  };
  for (int call = 0; call < 3; ++call) {
    CAPTURE(call);
    const auto [output, gradient] = run(module);
    const auto [new_output, new_gradient] = run(swapped);
    CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
    CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-5, 1e-5}));
  }
}

TEST_CASE("Each branch that changes scores has attention of its own") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), false);
  module.define(
      "def forward(self, q, k, v, m: Optional[Tensor]):\n"
      "    s = torch.matmul(q, k.transpose(-2, -1)) / 3.0\n"
      "    if m is not None:\n"
      "        s = s.masked_fill(m, float('-inf'))\n"
      "    if self.flag:\n"
      "        s = s * 0.5\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  const auto q = torch::randn({2, 3, 5, 8});
  const auto k = torch::randn({2, 3, 7, 8});
  const auto mask = torch::ones({5, 7}, torch::kBool).triu(1);
  check_branches(module, 4, {{q, k, k, mask}, {q, k, k, c10::IValue()}});
}

TEST_CASE("A branch that is left alone beside others keeps its gradients") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.define(
      "def forward(self, x, b):\n"
      "    q = x.view(x.size(0), x.size(1), 2, -1).transpose(1, 2)\n"
      "    s = torch.matmul(q, q.transpose(-2, -1))\n"
      "    if self.flag:\n"
      "        s = torch.add(s, b, alpha=2)\n"
      "    w = torch.softmax(s, -1, 7).to(6)\n"
      "    return torch.matmul(w, q)\n");
  auto swapped = module.clone();
  const auto report = swap_attention(swapped);
  CHECK(report.swapped.size() == 1);
  CHECK(report.left_alone.size() == 1);
  check_same_at_calls(
      module, swapped, {torch::randn({2, 5, 8}), torch::rand({5, 5})});
}

TEST_CASE("Scores that a tensor multiplies in place keep their gradients") {
  torch::jit::Module module("Model");
  module.register_attribute("flag", c10::BoolType::get(), true);
  module.define(
      "def forward(self, x):\n"
      "    s = torch.matmul(x, x.transpose(-2, -1))\n"
      "    s *= torch.sqrt(torch.tensor(float(x.size(-1))))\n"
      "    if self.flag:\n"
      "        s.mul_(0.5)\n"
      "    return torch.matmul(torch.softmax(s, -1), x)\n");
  auto swapped = module.clone();
  swap_attention(swapped);
  check_same_at_calls(module, swapped, {torch::randn({2, 5, 8})});
}

TEST_CASE("A key that is changed in place after its product stays out of it") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, x):\n"
      "    k = x * 2.0\n"
      "    s = torch.einsum('btd,bsd->bts', x, k)\n"
      "    k.mul_(2.0)\n"
      "    if x.size(1) > 4:\n"
      "        s = s / 3.0\n"
      "    else:\n"
      "        s = s * 3.0\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.einsum('bts,bsd->btd', w, x)\n");
  auto swapped = module.clone();
  swap_attention(swapped);
  // Without gradients: autograd refuses a key that changes after the product.
  const torch::NoGradGuard no_grad;
  for (const int64_t tokens : {4, 5}) {
    const auto x = torch::randn({2, tokens, 8});
    CHECK_THAT(
        swapped.forward({x}).toTensor(),
        IsCloseTo(module.forward({x}).toTensor()));
  }
}

TEST_CASE("Gradients that are switched off before a branch stay off") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, q, k, v, m: Optional[Tensor]):\n"
      "    torch.set_grad_enabled(False)\n"
      "    s = torch.matmul(q, k.transpose(-2, -1))\n"
      "    torch.set_grad_enabled(True)\n"
      "    if m is not None:\n"
      "        s = s.masked_fill(m, float('-inf'))\n"
      "    w = torch.softmax(s, -1)\n"
      "    return torch.matmul(w, v)\n");
  const auto report = swap_attention(module);
  CHECK(report.swapped.empty());
  CHECK(report.left_alone.size() == 1);
}

TEST_CASE("Scores that are changed in place in a branch, or in a loop, stay") {
  for (const auto* scores :
       {"    if self.flag:\n        s.masked_fill_(m, -1e9)\n",
        "    if self.training:\n        s.mul_(0.5)\n",
        "    for i in range(3):\n        s.mul_(0.5)\n",
        "    s = s.to(3).to(q.dtype)\n",
        "    s = s.masked_fill(m, -1e6) / 1e6\n",
        "    s = s + 1.5\n",
        "    s[..., 0] = 0.0\n",
        "    s = torch.cat([s, s[..., :1]], -1)[..., :-1]\n"}) {
    INFO(scores);
    auto module = model_of_scores(scores);
    const auto before = code(module);
    const auto report = swap_attention(module);
    CHECK(report.swapped.empty());
    CHECK(report.left_alone.size() == 1);
    CHECK(code(module) == before);
  }
}

} // namespace swap_branches_test
} // namespace torch_attention
