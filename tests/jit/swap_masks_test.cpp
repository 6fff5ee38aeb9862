// Masks of swapped attention: kept by the model, made of sizes, or finite
// fills.

#include <jit/scripted_model.h>

#include <cmath>

namespace torch_attention {
namespace swap_masks_test {

using namespace testing::scripted;
using testing::IsCloseTo;

/// Swaps, and compares outputs and gradients at several lengths.
void check_swapped_at_all_sizes(torch::jit::Module& module) {
  auto swapped = module.clone();
  REQUIRE(swap_attention(swapped).swapped.size() == 1);
  for (const int64_t tokens : {1, 2, 6, 9, 40}) {
    CAPTURE(tokens);
    const auto x = torch::randn({2, tokens, 8});
    const auto run = [&](torch::jit::Module& one) {
      const auto w = one.attr("w").toTensor();
      const auto y = one.forward({x}).toTensor();
      return std::pair(
          y.detach(), torch::autograd::grad({y.sin().sum()}, {w})[0]);
    };
    const auto [output, gradient] = run(module);
    const auto [new_output, new_gradient] = run(swapped);
    CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
    CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
  }
}

TEST_CASE("A mask hides what its values say, however many tokens there are") {
  const auto masked = [](const std::string& mask) {
    return model(
        kScores + mask + "    scores = scores.masked_fill(m, float('-inf'))\n" +
        kWeights + kOutput);
  };
  const std::string distance =
      "    i = torch.arange(T)\n    d = i.unsqueeze(1) - i.unsqueeze(0)\n";
  for (const auto& mask :
       {distance + "    m = d < 0\n",
        distance + "    m = torch.logical_or(d < 0, d >= 7)\n",
        distance + "    m = torch.logical_and(d < 0, i >= 8)\n",
        std::string("    m = torch.triu(torch.ones(T, T), 1) > 0\n"
                    "    m[:, :2] = False\n"),
        std::string("    m = torch.triu(torch.ones(T, T), 1) > 0\n"
                    "    m.select(1, 0).fill_(False)\n"),
        std::string("    m = x.detach().sum(-1).unsqueeze(1) > 4\n"
                    "    m[:, :, 0] = False\n"),
        std::string("    self.mask = torch.ones(T, T).triu(1)\n"
                    "    m = self.mask > 0\n")}) {
    INFO(mask);
    auto module = masked(mask);
    check_swapped_at_all_sizes(module);
  }
}

TEST_CASE("A mask that a model keeps may change after the swap") {
  auto module = model(kMasked + kWeights + kOutput);
  auto swapped = module.clone();
  swap_attention(swapped);
  swapped.attr("mask").toTensor()[4][0] = 1;
  module.attr("mask").toTensor()[4][0] = 1;
  const auto x = torch::randn({2, 5, 8});
  CHECK_THAT(
      swapped.forward({x}).toTensor(),
      IsCloseTo(module.forward({x}).toTensor(), {1e-5, 1e-5}));
}

TEST_CASE("The values of a buffer are left as they were") {
  auto module = model(kMasked + kWeights + kOutput);
  const auto before = module.attr("mask").toTensor().clone();
  check_swapped(module);
  CHECK(torch::equal(module.attr("mask").toTensor(), before));
}

TEST_CASE("Queries that a finite fill hides everything from see all alike") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, x, mask):\n"

      "    scores = torch.matmul(x, x.transpose(1, 2))\n"
      "    scores = scores.masked_fill(mask, -1e9)\n"
      "    return torch.matmul(torch.softmax(scores, -1), x)\n");
  auto x = torch::randn({2, 5, 8}).requires_grad_();
  auto mask = torch::rand({2, 5, 5}) > 0.5;
  mask[1][2] = true;
  const auto run = [&] {
    const auto y = module.forward({x, mask}).toTensor();
    return std::pair(
        y.detach(), torch::autograd::grad({y.sin().sum()}, {x})[0]);
  };
  const auto [output, gradient] = run();
  CHECK(swap_attention(module).swapped.size() == 1);
  const auto [new_output, new_gradient] = run();
  CHECK_THAT(new_output, IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(new_gradient, IsCloseTo(gradient, {1e-4, 1e-4}));
}

TEST_CASE("A bias that is not finite acts on hidden keys as before") {
  const std::string fill = GENERATE("float('-inf')", "-1e9");
  const double unusual = GENERATE(NAN, INFINITY);
  CAPTURE(fill, unusual);
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, x, mask, bias):\n"
      "    scores = torch.matmul(x, x.transpose(1, 2))\n"
      "    scores = scores.masked_fill(mask, " +
      fill +
      ") + bias\n"
      "    return torch.matmul(torch.softmax(scores, -1), x)\n");
  const auto x = torch::randn({2, 5, 8});
  const auto mask = torch::ones({5, 5}, torch::kBool).triu(1);
  auto bias = torch::zeros({5, 5});
  bias[0][4] = unusual;
  const auto expected = module.forward({x, mask, bias}).toTensor();
  REQUIRE(expected.isnan().any().item<bool>());
  CHECK(swap_attention(module).swapped.size() == 1);
  CHECK(torch::allclose(
      module.forward({x, mask, bias}).toTensor(),
      expected,
      1e-5,
      1e-5,
      /*equal_nan=*/true));
}

TEST_CASE("A swapped model refuses what it refused before") {
  torch::jit::Module filled("Model");
  filled.define(
      "def forward(self, x, mask):\n"
      "    scores = torch.matmul(x, x.transpose(1, 2))\n"
      "    scores = scores.masked_fill(mask, -1e9)\n"
      "    return torch.matmul(torch.softmax(scores, -1), x)\n");
  const auto x = torch::randn({2, 5, 8}).to(torch::kHalf);
  const auto mask = torch::ones({5, 5}, torch::kBool).triu(1);
  CHECK_THROWS_AS(filled.forward({x, mask}), std::exception);
  CHECK(swap_attention(filled).swapped.size() == 1);
  CHECK_THROWS_AS(filled.forward({x, mask}), std::exception);

  torch::jit::Module masked("Model");
  masked.define(
      "def forward(self, q, mask):\n"
      "    return torch.scaled_dot_product_attention(q, q, q, mask)\n");
  const auto q = torch::randn({2, 3, 5, 8});
  CHECK_THROWS_AS(masked.forward({q, torch::zeros({5})}), std::exception);
  CHECK(swap_attention(masked).swapped.size() == 1);
  CHECK_THROWS_AS(masked.forward({q, torch::zeros({5})}), std::exception);
}

TEST_CASE("LibTorch's operator keeps its alignment of causal masks") {
  torch::jit::Module module("Model");
  module.define(
      "def forward(self, q, k):\n"
      "    return torch.scaled_dot_product_attention(q, k, k, is_causal=True)\n");
  const auto q = torch::randn({2, 3, 4, 8});
  const auto k = torch::randn({2, 3, 6, 8});
  const auto expected = module.forward({q, k}).toTensor();
  CHECK(swap_attention(module).swapped.size() == 1);
  CHECK_THAT(
      module.forward({q, k}).toTensor(), IsCloseTo(expected, {1e-5, 1e-5}));
}

} // namespace swap_masks_test
} // namespace torch_attention
