// The root mean square norm: our kernel and the operators, against float64.

#include <kernels/rms_norm.h>

#include <support/close.h>
#include <support/instruction_set.h>
#include <support/test.h>

#include <torch_attention/nn/functional/rms_norm.h>

#include <limits>

namespace rms_norm_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

torch::Tensor expected(const torch::Tensor& x, const kernels::RmsNorm& norm) {
  const auto wide = x.to(torch::kDouble);
  auto y = wide / (wide.square().mean(-1, true) + norm.eps).sqrt();
  if (norm.weight.defined()) {
    y = y * (norm.weight.to(torch::kDouble) + (norm.unit_offset ? 1 : 0));
  }
  return (norm.bias.defined() ? y + norm.bias : y).to(x.scalar_type());
}

Tolerance tolerance_of(torch::ScalarType dtype) {
  // Near a tie the error of float32 decides the direction of rounding.
  switch (dtype) {
    case torch::kBFloat16:
      return {0x1p-7, 1e-5};
    case torch::kHalf:
      return {0x1p-10, 1e-5};
    case torch::kDouble:
      return {1e-13, 1e-13};
    default:
      return {2e-6, 1e-6};
  }
}

} // namespace

TEST_CASE("Rows are divided by the root of their mean square") {
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto set = GENERATE(
      cpu::InstructionSet::kPortable,
      cpu::InstructionSet::kAvx2,
      cpu::InstructionSet::kAvx512);
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  const auto with_weight = GENERATE(true, false);
  const WithInstructionSet with(set);
  torch::manual_seed(1);
  for (const int64_t size : {1, 2, 7, 16, 33, 64, 100, 896, 1031}) {
    CAPTURE(toString(dtype), set, kernel, with_weight, size);
    const auto x = torch::randn({3, 50, size}).to(dtype);
    kernels::RmsNorm norm;
    norm.eps = 1e-3;
    if (with_weight) {
      norm.weight = torch::randn({size}).to(dtype);
      norm.unit_offset = size % 2 == 0;
    }
    const auto y = kernels::rms_norm(x, norm, kernel);
    CHECK_THAT(y, IsCloseTo(expected(x, norm), tolerance_of(dtype)));
    CHECK_THAT(
        kernels::rms_norm(x.select(0, 1).select(0, 2), norm, kernel),
        IsCloseTo(expected(x[1][2], norm), tolerance_of(dtype)));
  }
}

TEST_CASE("Heads have weights and biases of their own") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto of_heads = GENERATE(true, false);
  const auto heads_first = GENERATE(true, false);
  torch::manual_seed(2);
  const auto drawn = [&](torch::IntArrayRef sizes) {
    return torch::randn(sizes).to(dtype);
  };
  const auto x =
      heads_first ? drawn({2, 3, 5, 20}).transpose(1, 2) : drawn({2, 5, 3, 20});
  const std::vector<int64_t> sizes =
      of_heads ? std::vector<int64_t>{3, 20} : std::vector<int64_t>{20};
  const kernels::RmsNorm norm{drawn(sizes), drawn(sizes), 1e-6, true};
  const auto y = kernels::rms_norm(x, norm, Kernel::kAuto);
  CHECK_THAT(y, IsCloseTo(expected(x, norm), tolerance_of(dtype)));
  CHECK(y.strides() == x.strides());
  // The numbers of a row are not contiguous.
  const auto strided = x.transpose(2, 3).contiguous().transpose(2, 3);
  CHECK_THAT(
      kernels::rms_norm(strided, norm, Kernel::kAuto),
      IsCloseTo(expected(x, norm), tolerance_of(dtype)));
}

TEST_CASE("Rows that share memory, and others of four dimensions") {
  torch::manual_seed(4);
  kernels::RmsNorm norm;
  norm.eps = 1e-6;
  norm.weight = torch::randn({16});
  for (const auto& x :
       {torch::randn({2, 3, 20}).unfold(-1, 16, 1),
        torch::randn({1, 1, 16}).expand({2, 3, 5, 16}),
        torch::randn({1, 1, 5000, 16}),
        torch::randn({2, 3, 4, 5, 16})}) {
    CHECK_THAT(
        kernels::rms_norm(x, norm, Kernel::kAuto),
        IsCloseTo(expected(x, norm), tolerance_of(torch::kFloat)));
  }
}

TEST_CASE("What the kernel does not take is computed by operators") {
  torch::manual_seed(5);
  kernels::RmsNorm norm;
  norm.eps = 1e-6;
  norm.weight = torch::randn({16, 2}).select(1, 0); // not contiguous
  const auto x = torch::randn({3, 16}).to(torch::kBFloat16); // another dtype
  CHECK_THAT(
      functional::rms_norm(x, norm.weight),
      IsCloseTo(expected(x, norm), tolerance_of(torch::kBFloat16)));
  CHECK(functional::rms_norm(torch::empty({2, 16}, torch::kMeta)).is_meta());
  norm.bias = torch::randn({16});
  norm.weight = torch::Tensor();
  const auto wide = torch::randn({3, 16});
  CHECK_THAT(
      kernels::rms_norm(wide, norm, Kernel::kAuto),
      IsCloseTo(expected(wide, norm), tolerance_of(torch::kFloat)));
}

TEST_CASE("A row that is not finite leaves the others as they are") {
  const auto x = torch::randn({4, 24});
  auto spoiled = x.clone();
  spoiled[1][3] = std::numeric_limits<float>::quiet_NaN();
  spoiled[2][3] = std::numeric_limits<float>::infinity();
  const auto y = functional::rms_norm(spoiled);
  CHECK(y[1].isnan().all().item<bool>());
  CHECK(y[2].isnan().sum().item<int64_t>() == 1);
  const auto others = torch::tensor({0, 3});
  CHECK_THAT(
      y.index({others}), IsEqualTo(functional::rms_norm(x).index({others})));
}

TEST_CASE("The norm of a model has gradients, and none in inference") {
  torch::manual_seed(3);
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  auto x = torch::randn({2, 6, 40}).to(dtype).requires_grad_();
  auto weight = torch::randn({40}).to(dtype).requires_grad_();
  const auto factor = torch::randn({2, 6, 40});
  const auto gradients = [&](const torch::Tensor& y) {
    return torch::autograd::grad({(y * factor).sum()}, {x, weight});
  };
  kernels::RmsNorm norm;
  norm.weight = weight;
  norm.eps = 1e-5;
  const auto y = functional::rms_norm(x, weight, 1e-5);
  const auto ours = gradients(y);
  const auto theirs = gradients(expected(x, norm));
  const auto tolerance =
      dtype == torch::kFloat ? Tolerance(1e-4, 1e-4) : Tolerance(2e-2, 5e-2);
  CHECK_THAT(ours[0], IsCloseTo(theirs[0], tolerance));
  CHECK_THAT(ours[1], IsCloseTo(theirs[1], tolerance));
  const c10::InferenceMode inference;
  const auto without = functional::rms_norm(x, weight, 1e-5);
  CHECK(!without.requires_grad());
  CHECK_THAT(without, IsCloseTo(y.detach(), tolerance_of(dtype)));
}

TEST_CASE("A norm of sizes that do not fit is an error") {
  const auto x = torch::rand({2, 3});
  using functional::rms_norm;
  THROWS_WITH(rms_norm({}), "rms_norm: x is undefined");
  THROWS_WITH(rms_norm(torch::tensor(1.0)), "expected x of shape (..., C)");
  THROWS_WITH(
      rms_norm(x, torch::rand({2})),
      "rms_norm: expected a weight of shape (3) for x [2, 3], but got [2]");
  THROWS_WITH(rms_norm(x, torch::rand({3, 3})), "weight of shape (3)");
  THROWS_WITH(rms_norm(x, {}, -1), "rms_norm: expected a finite eps >= 0");
  THROWS_WITH(rms_norm(x, {}, 1e-6, true), "weight beside unit_offset");
  THROWS_WITH(
      rms_norm(torch::ones({2}, torch::kLong)),
      "rms_norm: expected floating-point x");
  torch::Tensor of_inference;
  {
    const c10::InferenceMode inference;
    of_inference = torch::rand({3});
  }
  THROWS_WITH(
      rms_norm(torch::rand({2, 3}, torch::requires_grad()), of_inference),
      "rms_norm: ");
  CHECK(rms_norm(torch::rand({0, 3})).sizes() == torch::IntArrayRef({0, 3}));
}

} // namespace rms_norm_test
