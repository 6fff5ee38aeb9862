// The projections, by the library that is faster on this processor.

#include <kernels/linear.h>

#include <support/close.h>
#include <support/test.h>

#include <ATen/autocast_mode.h>

namespace linear_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using kernels::has_onednn_linear;
using kernels::onednn_linear;

namespace {

struct Operands {
  torch::Tensor x = torch::randn({3, 50, 20}).requires_grad_();
  torch::Tensor weight = torch::randn({30, 20}).requires_grad_();
  torch::Tensor bias = torch::randn({30}).requires_grad_();

  bool are_taken() const {
    return has_onednn_linear(x, weight, bias);
  }
};

const Tolerance kSums(1e-5, 1e-4);
/// Of thousands of products of numbers that are rounded already.
const Tolerance kSumsOfSums(1e-5, 1e-3);

} // namespace

TEST_CASE("oneDNN's linear layer equals LibTorch's, with gradients") {
  torch::manual_seed(1);
  Operands o;
  if (!at::hasMKLDNN()) {
    WARN("this LibTorch has no oneDNN");
    return;
  }
  REQUIRE(o.are_taken());
  SECTION("with a bias") {}
  SECTION("without") {
    o.bias.reset();
  }
  SECTION("strided") {
    o.x = torch::randn({20, 50, 3}).transpose(0, 2).requires_grad_();
  }
  SECTION("without a gradient of x") {
    o.x = o.x.detach();
  }
  SECTION("without a gradient of the weight") {
    o.weight = o.weight.detach();
  }
  std::vector<torch::Tensor> leaves;
  for (const auto& x : {o.x, o.weight, o.bias}) {
    if (x.defined() && x.requires_grad()) {
      leaves.push_back(x);
    }
  }
  const auto results = [&](const torch::Tensor& y) {
    auto all = torch::autograd::grad({y.pow(2).sum()}, leaves);
    all.push_back(y.detach());
    return all;
  };
  const auto ours = results(onednn_linear(o.x, o.weight, o.bias));
  const auto theirs = results(torch::linear(o.x, o.weight, o.bias));
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(ours[i], IsCloseTo(theirs[i], kSums));
  }
}

TEST_CASE("oneDNN's linear layer can be differentiated twice") {
  torch::manual_seed(2);
  const Operands o;
  if (!at::hasMKLDNN()) {
    return;
  }
  REQUIRE(o.are_taken());
  const auto second = [&](const torch::Tensor& y) {
    const auto first = torch::autograd::grad(
        {y.sin().sum()},
        {o.x},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum()}, {o.weight})[0];
  };
  CHECK_THAT(
      second(onednn_linear(o.x, o.weight, o.bias)),
      IsCloseTo(second(torch::linear(o.x, o.weight, o.bias)), kSumsOfSums));
}

TEST_CASE("oneDNN is left out where it cannot do what LibTorch does") {
  Operands o;
  if (!at::hasMKLDNN()) {
    return;
  }
  REQUIRE(o.are_taken());
  SECTION("for other dtypes") {
    o.x = o.x.to(torch::kDouble);
    CHECK_FALSE(o.are_taken());
  }
  SECTION("for no rows") {
    o.x = torch::empty({0, 20});
    CHECK_FALSE(o.are_taken());
  }
  SECTION("for sizes that do not fit") {
    o.bias = torch::randn({1});
    CHECK_FALSE(o.are_taken());
  }
  SECTION("under autocast") {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    CHECK_FALSE(o.are_taken());
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  SECTION("if the user turned it off") {
    at::globalContext().setUserEnabledMkldnn(false);
    CHECK_FALSE(o.are_taken());
    at::globalContext().setUserEnabledMkldnn(true);
  }
}

TEST_CASE("Modules with large projections equal the reference") {
  constexpr int64_t kSize = 160;
  const auto run = [&](Kernel kernel) {
    torch::manual_seed(3);
    MultiHeadAttention attention(MultiHeadAttentionOptions(kSize, kSize, 200, 4)
                                     .qkv_bias(true)
                                     .kernel(kernel));
    auto leaves = attention->parameters();
    leaves.push_back(torch::randn({2, 200, kSize}).requires_grad_());
    const auto output = attention(leaves.back());
    auto results = torch::autograd::grad({output.pow(2).sum()}, leaves);
    results.push_back(output.detach());
    return results;
  };
  const auto fused = run(Kernel::kFused);
  const auto reference = run(Kernel::kReference);
  for (size_t i = 0; i < fused.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(fused[i], IsCloseTo(reference[i], Tolerance(1e-4, 1e-3)));
  }
}

} // namespace linear_test
