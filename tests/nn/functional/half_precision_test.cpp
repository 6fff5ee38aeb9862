// How exact half precision is: the forward pass and its gradients are at least
// as near to the result in float64 as those of LibTorch's kernel in the same
// dtype.

#include <support/test.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <vector>

namespace half_precision_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

using Attend = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

/// The output and the gradients of query, key and value, as float64.
std::vector<torch::Tensor> results_of(
    const Attend& attend,
    const std::vector<torch::Tensor>& inputs,
    const torch::Tensor& grad_output) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().requires_grad_());
  }
  const auto output = attend(leaves);
  auto results = torch::autograd::grad({output}, leaves, {grad_output});
  results.insert(results.begin(), output.detach());
  for (auto& x : results) {
    x = x.to(torch::kDouble);
  }
  return results;
}

/// Sums of squares of the differences from `exact`.
struct Errors {
  double ours = 0;
  double theirs = 0;
};

} // namespace

TEST_CASE("Half precision is as exact as LibTorch's kernel") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  CAPTURE(dtype);
  torch::manual_seed(3);
  std::mt19937 random(3);
  const auto draw = [&](std::vector<int64_t> choices) {
    return choices[random() % choices.size()];
  };
  // For the output, and for the gradients of query, key and value.
  std::vector<Errors> sums(4);
  for (int i = 0; i < 500; ++i) {
    const auto H = draw({1, 2, 3});
    const auto T = draw({16, 17, 33, 64});
    const auto D = draw({8, 13, 16, 32, 64, 80});
    const bool causal = draw({0, 1}) == 1;
    const double spread = static_cast<double>(draw({1, 2, 4}));
    CAPTURE(i, H, T, D, causal, spread);
    std::vector<torch::Tensor> inputs;
    for (int j = 0; j < 3; ++j) {
      inputs.push_back(
          (torch::randn({1, H, T, D}) * (j == 0 ? spread : 1)).to(dtype));
    }
    const auto grad_output = torch::randn({1, H, T, D}).to(dtype);
    const auto ours = [&](const std::vector<torch::Tensor>& x) {
      return F::scaled_dot_product_attention(
          x[0], x[1], x[2], Options().causal(causal).kernel(Kernel::kFused));
    };
    const auto theirs = [&](const std::vector<torch::Tensor>& x) {
      return at::scaled_dot_product_attention(
          x[0], x[1], x[2], std::nullopt, 0.0, causal);
    };
    std::vector<torch::Tensor> wide;
    for (const auto& x : inputs) {
      wide.push_back(x.to(torch::kDouble));
    }
    const auto exact = results_of(ours, wide, grad_output.to(torch::kDouble));
    const auto by_ours = results_of(ours, inputs, grad_output);
    const auto by_theirs = results_of(theirs, inputs, grad_output);
    for (size_t j = 0; j < exact.size(); ++j) {
      CAPTURE(j);
      const auto size = exact[j].square().mean().item<double>();
      const auto error = [&](const std::vector<torch::Tensor>& x) {
        return (x[j] - exact[j]).square().mean().item<double>() / size;
      };
      const auto our_error = error(by_ours);
      const auto their_error = error(by_theirs);
      // Few numbers differ by chance.
      CHECK(our_error <= 4 * their_error);
      sums[j].ours += our_error;
      sums[j].theirs += their_error;
    }
  }
  for (size_t j = 0; j < sums.size(); ++j) {
    CAPTURE(j, sums[j].ours, sums[j].theirs);
    CHECK(sums[j].ours <= sums[j].theirs);
  }
}

TEST_CASE("Few queries of many keys are as exact as by LibTorch's kernel") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  CAPTURE(dtype);
  const torch::NoGradGuard no_grad;
  torch::manual_seed(4);
  std::mt19937 random(4);
  const auto draw = [&](std::vector<int64_t> choices) {
    return choices[random() % choices.size()];
  };
  Errors sums;
  for (int i = 0; i < 250; ++i) {
    const auto G = draw({1, 2});
    const auto group = draw({1, 2, 4, 7, 8, 16});
    const auto T = draw({1, 2, 3, 16});
    const auto S = draw({17, 40, 300, 1100, 2000});
    const auto D = draw({16, 64, 80, 128});
    CAPTURE(i, G, group, T, S, D);
    const auto query = torch::randn({1, G * group, T, D}).to(dtype);
    const auto key = torch::randn({1, G, S, D}).to(dtype);
    const auto value = torch::randn({1, G, S, D}).to(dtype);
    const auto attend = [&](torch::ScalarType as) {
      return F::scaled_dot_product_attention(
                 query.to(as),
                 key.to(as),
                 value.to(as),
                 Options().enable_gqa(true).kernel(Kernel::kFused))
          .to(torch::kDouble);
    };
    const auto repeated = [&](const torch::Tensor& x) {
      return x.repeat_interleave(group, 1);
    };
    const auto exact = attend(torch::kDouble);
    const auto error = [&](const torch::Tensor& x) {
      return (x - exact).square().mean().item<double>() /
          exact.square().mean().item<double>();
    };
    const auto ours = error(attend(dtype));
    const auto theirs = error(
        at::scaled_dot_product_attention(query, repeated(key), repeated(value))
            .to(torch::kDouble));
    // Few numbers differ by chance.
    CHECK(ours <= 4 * theirs);
    sums.ours += ours;
    sums.theirs += theirs;
  }
  CAPTURE(sums.ours, sums.theirs);
  // By AMX both round weights alike, and neither is ahead.
  CHECK(sums.ours <= 1.05 * sums.theirs);
}

TEST_CASE("A large bias of all keys leaves the scores to the fused kernel") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const double large = GENERATE(-65504.0, -1e4);
  CAPTURE(dtype, large);
  torch::manual_seed(9);
  std::vector<torch::Tensor> inputs;
  for (int j = 0; j < 3; ++j) {
    inputs.push_back(torch::randn({1, 2, 40, 16}).to(dtype));
  }
  const auto grad_output = torch::randn({1, 2, 40, 16}).to(dtype);
  const auto bias = torch::full({1, 1, 40, 40}, large).to(dtype);
  const auto by = [](Kernel kernel, const torch::Tensor& added) -> Attend {
    return [=](const std::vector<torch::Tensor>& x) {
      return F::scaled_dot_product_attention(
          x[0], x[1], x[2], Options().bias(added).kernel(kernel));
    };
  };
  std::vector<torch::Tensor> wide;
  for (const auto& x : inputs) {
    wide.push_back(x.to(torch::kDouble));
  }
  // One number for all keys changes nothing.
  const auto exact =
      results_of(by(Kernel::kFused, {}), wide, grad_output.to(torch::kDouble));
  const auto fused = results_of(by(Kernel::kFused, bias), inputs, grad_output);
  for (size_t j = 0; j < exact.size(); ++j) {
    CAPTURE(j);
    CHECK_THAT(fused[j], IsCloseTo(exact[j], {0, 0.03}));
  }
  // Python's sequence rounds the scores to the bias's dtype.
  const auto in_python = [&](const std::vector<torch::Tensor>& x) {
    const auto scores = torch::matmul(x[0], x[1].transpose(-1, -2)) / 4.0;
    return torch::matmul(torch::softmax(scores + bias, -1), x[2]);
  };
  const auto expected = results_of(in_python, inputs, grad_output);
  const auto reference =
      results_of(by(Kernel::kReference, bias), inputs, grad_output);
  for (size_t j = 0; j < expected.size(); ++j) {
    CAPTURE(j);
    CHECK_THAT(reference[j], IsCloseTo(expected[j], {0, 0.03}));
  }
  CHECK((reference[0] - exact[0]).abs().max().item<double>() > 0.1);
}

} // namespace half_precision_test
