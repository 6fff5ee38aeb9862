// The projections, by the library that is faster on this processor.

#include <kernels/linear.h>

#include <support/close.h>
#include <support/instruction_set.h>
#include <support/test.h>

#include <torch_attention/nn/functional/linear.h>
#include <torch_attention/nn/options/attention.h>

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

/// For sums of thousands of products of rounded numbers.
const Tolerance kSumsOfSums(1e-5, 1e-3);

/// Checks a layer of `sizes` inputs and outputs against float64's.
void check_layer(
    const std::pair<int64_t, int64_t>& sizes,
    int64_t rows,
    bool with_bias,
    torch::ScalarType dtype,
    const Tolerance& tolerance) {
  const auto draw = [&](torch::IntArrayRef shape) {
    return torch::randn(shape).to(dtype);
  };
  // The rows are not contiguous.
  const auto x = draw({1, sizes.first, rows}).transpose(1, 2);
  const auto weight = draw({sizes.second, sizes.first});
  const auto bias = with_bias ? draw({sizes.second}) : torch::Tensor();
  const auto wide = [](const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.to(torch::kDouble) : tensor;
  };
  const auto y = kernels::linear(x, weight, bias);
  CHECK(y.scalar_type() == dtype);
  CHECK_THAT(
      y.to(torch::kDouble),
      IsCloseTo(torch::linear(wide(x), wide(weight), wide(bias)), tolerance));
}

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

TEST_CASE("Layers of half precision are exact, with gradients") {
  torch::manual_seed(2);
  // The first two have no products of bfloat16.
  const WithInstructionSet processor(GENERATE(
      cpu::InstructionSet::kAvx2,
      cpu::InstructionSet::kAvx512,
      cpu::InstructionSet::kAmxBf16));
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  const double rounding = dtype == torch::kHalf ? 1e-3 : 8e-3;
  // Large enough to be computed in float32, and too small.
  const auto rows = GENERATE(as<int64_t>(), 300, 3);
  const bool by_onednn = GENERATE(true, false);
  CAPTURE(toString(dtype), rows, by_onednn);
  at::globalContext().setUserEnabledMkldnn(by_onednn);
  const auto exact = [](const std::vector<torch::Tensor>& leaves) {
    const auto y = torch::linear(leaves[0], leaves[1], leaves[2]);
    auto all = torch::autograd::grad({y.pow(2).sum()}, leaves);
    all.push_back(y.detach());
    return all;
  };
  std::vector<torch::Tensor> leaves;
  std::vector<torch::Tensor> wide;
  for (const auto& shape :
       {std::vector<int64_t>{2, rows, 160},
        std::vector<int64_t>{170, 160},
        std::vector<int64_t>{170}}) {
    const auto x = (torch::randn(shape) * 0.1).to(dtype);
    leaves.push_back(x.detach().clone().requires_grad_());
    wide.push_back(x.to(torch::kDouble).requires_grad_());
  }
  const auto y = kernels::linear(leaves[0], leaves[1], leaves[2]);
  CHECK(y.scalar_type() == dtype);
  auto ours = torch::autograd::grad({y.pow(2).sum(torch::kFloat)}, leaves);
  ours.push_back(y.detach());
  at::globalContext().setUserEnabledMkldnn(true);
  const auto expected = exact(wide);
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK(ours[i].scalar_type() == dtype);
    // Gradients sum up the rounding errors of the output.
    const auto most = expected[i].abs().max().item<double>();
    CHECK_THAT(
        ours[i].to(torch::kDouble),
        IsCloseTo(expected[i], Tolerance(2 * rounding, rounding * most)));
  }
}

TEST_CASE("Layers of half precision without a graph are exact") {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  const WithInstructionSet processor(GENERATE(
      cpu::InstructionSet::kAvx2,
      cpu::InstructionSet::kAvx512,
      cpu::InstructionSet::kAmxBf16));
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  const auto with_bias = GENERATE(true, false);
  const double rounding = dtype == torch::kHalf ? 1e-3 : 8e-3;
  // The last weight is computed in parts, of which the last is small.
  const auto sizes = GENERATE(values<std::pair<int64_t, int64_t>>(
      {{700, 400}, {1029, 300}, {2048, 1100}}));
  for (const int64_t rows : {17, 31, 32, 48, 49, 128, 129, 150}) {
    CAPTURE(toString(dtype), with_bias, sizes.first, sizes.second, rows);
    check_layer(
        sizes, rows, with_bias, dtype, Tolerance(rounding, rounding + 1e-3));
  }
}

TEST_CASE("Layers of few rows are exact to the rounding of their numbers") {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  const auto dtype = GENERATE(values<torch::ScalarType>(
      {torch::kFloat, torch::kBFloat16, torch::kHalf}));
  const auto with_bias = GENERATE(true, false);
  // Whole vectors and a remainder, one thread and several; the last four
  // outputs overlap the ones before.
  const auto sizes = GENERATE(values<std::pair<int64_t, int64_t>>(
      {{64, 66}, {65, 64}, {1029, 4}, {2048, 131}, {700, 1001}}));
  const auto rounding = dtype == torch::kFloat ? 1e-6
      : dtype == torch::kHalf                  ? 1e-3
                                               : 8e-3;
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 16, 17}) {
    CAPTURE(toString(dtype), with_bias, sizes.first, sizes.second, rows);
    check_layer(
        sizes, rows, with_bias, dtype, Tolerance(rounding, rounding + 1e-4));
  }
}

TEST_CASE("Layers of one input give the outputs of each of them") {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  const auto dtype = GENERATE(values<torch::ScalarType>(
      {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}));
  // The last layer alone is too small for the kernel of few rows.
  const auto outs = GENERATE(values<std::vector<int64_t>>(
      {{66}, {1001, 131, 64}, {4, 2048, 5, 700}, {600, 3}}));
  const auto kernel = GENERATE(Kernel::kFused, Kernel::kReference);
  for (const int64_t rows : {0, 1, 3, 40}) {
    CAPTURE(toString(dtype), outs, kernel, rows);
    const auto x = torch::randn({2, rows, 1029}).to(dtype);
    std::vector<kernels::LinearLayer> layers;
    for (const auto out : outs) {
      layers.push_back({torch::randn({out, 1029}).to(dtype), {}});
      if (out % 2 == 1) {
        layers.back().bias = torch::randn({out}).to(dtype);
      }
    }
    const auto outputs = kernels::linear_each(x, layers, kernel);
    REQUIRE(outputs.size() == outs.size());
    for (size_t i = 0; i < outs.size(); ++i) {
      CAPTURE(i);
      CHECK(outputs[i].equal(
          kernels::linear(x, layers[i].weight, layers[i].bias, kernel)));
    }
  }
}

TEST_CASE("A layer of few rows has gradients if they are wanted") {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 100}).requires_grad_();
  const auto weight = torch::randn({80, 100});
  const auto y = kernels::linear(x, weight, {});
  CHECK_THAT(
      torch::autograd::grad({y.sum()}, {x})[0],
      IsCloseTo(weight.sum(0).expand({2, 100}), kSums));
}

TEST_CASE("The linear layers of a model are computed as projections are") {
  torch::manual_seed(5);
  const int64_t rows = GENERATE(1, 200);
  const auto x = (torch::randn({2, rows, 300}) * 0.1).requires_grad_();
  const auto weight = (torch::randn({400, 300}) * 0.1).requires_grad_();
  const auto bias = (torch::randn({400}) * 0.1).requires_grad_();
  const std::vector<torch::Tensor> leaves = {x, weight, bias};
  const auto expected = torch::linear(x, weight, bias);
  const auto y = functional::linear(x, weight, bias);
  CHECK(y.detach().equal(kernels::linear(x, weight, bias).detach()));
  CHECK_THAT(y.detach(), IsCloseTo(expected.detach(), kSums));
  const auto ours = torch::autograd::grad({y.pow(2).sum()}, leaves);
  const auto theirs = torch::autograd::grad({expected.pow(2).sum()}, leaves);
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(ours[i], IsCloseTo(theirs[i], kSums));
  }
  SECTION("without a bias") {
    CHECK_THAT(
        functional::linear(x, weight).detach(),
        IsCloseTo(torch::linear(x, weight).detach(), kSums));
  }
  SECTION("by kReference as LibTorch does, bit for bit") {
    set_default_kernel(Kernel::kReference);
    const auto reference = functional::linear(x, weight, bias);
    set_default_kernel(Kernel::kAuto);
    CHECK(reference.detach().equal(expected.detach()));
  }
}

TEST_CASE("What is no linear layer is an error") {
  const auto x = torch::randn({2, 3});
  THROWS_WITH(functional::linear({}, x), "linear: x is undefined");
  THROWS_WITH(functional::linear(x, {}), "linear: weight is undefined");
  THROWS_WITH(
      functional::linear(x, torch::randn(3)),
      "linear: expected x of shape (..., in) and weight of shape (out, in), "
      "but got [2, 3] and [3]");
  CHECK_THROWS_AS(functional::linear(x, torch::randn({4, 5})), c10::Error);
}

} // namespace linear_test
