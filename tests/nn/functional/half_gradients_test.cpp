// How exact gradients in half precision are.
//
// The backward pass takes from the gradient of each weight the row's mean, the
// product of the output and its gradient. The output is there in half
// precision, as it is in memory, so that the mean is wrong by the rounding of
// the output; where one key has almost all of the weight, the difference should
// be 0 and that error is all that is left. (The reference is exact there, since
// its weights round to 1 and 0.) It is bounded all the same: by half a unit of
// the output's last place, times the gradient, times the factor of the scores,
// times the keys.
//
// If bfloat16 is multiplied by pairs, weights and gradients of scores are
// rounded to it as well.

#include <support/close.h>
#include <support/test.h>

#include <vector>

namespace half_gradients_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

std::vector<torch::Tensor> gradients(
    const std::vector<torch::Tensor>& inputs,
    const torch::Tensor& grad_output,
    const Options& options) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().requires_grad_());
  }
  return torch::autograd::grad(
      {F::scaled_dot_product_attention(
          leaves[0], leaves[1], leaves[2], options)},
      leaves,
      {grad_output});
}

std::vector<torch::Tensor> to_double(const std::vector<torch::Tensor>& inputs) {
  std::vector<torch::Tensor> result;
  for (const auto& x : inputs) {
    result.push_back(x.to(torch::kDouble));
  }
  return result;
}

} // namespace

TEST_CASE("Gradients in half precision are as exact as the output") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const int64_t S = GENERATE(2, 3, 70, 600);
  const int64_t T = GENERATE(1, 40);
  const double scale = GENERATE(0.25, 1.0);
  const bool expanded = GENERATE(false, true);
  CAPTURE(dtype, S, T, scale, expanded);
  torch::manual_seed(1);
  const auto draw = [&](int64_t tokens) {
    return expanded
        ? torch::randn({1, 2, tokens, 16}).to(dtype).expand({3, 2, tokens, 16})
        : torch::randn({3, 2, tokens, 16}).to(dtype);
  };
  const std::vector<torch::Tensor> inputs{draw(T), draw(S), draw(S)};
  const auto grad_output = draw(T);
  const auto options = Options().scale(scale).kernel(Kernel::kFused);
  const auto result = gradients(inputs, grad_output, options);
  const auto exact = to_double(inputs);
  const auto grad = grad_output.to(torch::kDouble);
  const auto expected = gradients(exact, grad, options);
  const auto output =
      F::scaled_dot_product_attention(exact[0], exact[1], exact[2], options);

  // Half a unit of the last place, relative.
  const auto unit = dtype == torch::kBFloat16 ? 0x1p-8 : 0x1p-11;
  // (..., T, 1)
  const auto mean_error =
      ((output * grad).abs().sum(-1, /*keepdim=*/true) * unit);
  const auto weights = torch::softmax(
      torch::matmul(exact[0], exact[1].transpose(-2, -1)) * scale, -1);
  const auto factor_unit = dtype == torch::kBFloat16 ? unit : 0;
  const auto grad_weights = torch::matmul(grad, exact[2].transpose(-2, -1));
  const auto mean = (output * grad).sum(-1, /*keepdim=*/true);
  // (..., T, S)
  const auto score_error = weights * mean_error +
      (weights * (grad_weights - mean)).abs() * factor_unit;
  const auto check = [&](size_t i, const torch::Tensor& from_factors) {
    CAPTURE(i);
    const auto error = (result[i].to(torch::kDouble) - expected[i]).abs();
    const auto bound = (from_factors + expected[i].abs() * unit) * 1.05 + 4e-5;
    CHECK((error <= bound).all().item<bool>());
  };
  check(0, torch::matmul(score_error, exact[1].abs()) * scale);
  check(
      1, torch::matmul(score_error.transpose(-2, -1), exact[0].abs()) * scale);
  check(2, torch::matmul(weights.transpose(-2, -1), grad.abs()) * factor_unit);
}

TEST_CASE("Expanded batches are computed as their copies are") {
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const int64_t S = GENERATE(1, 2, 33);
  CAPTURE(dtype, S);
  torch::manual_seed(2);
  const auto draw = [&](int64_t tokens) {
    return torch::randn({1, 2, tokens, 8}).to(dtype).expand({4, 2, tokens, 8});
  };
  const std::vector<torch::Tensor> inputs{draw(5), draw(S), draw(S)};
  const auto grad_output = draw(5);
  const auto options = Options().scale(1).kernel(Kernel::kFused);
  std::vector<torch::Tensor> copies;
  for (const auto& x : inputs) {
    copies.push_back(x.contiguous());
  }
  const auto result = gradients(inputs, grad_output, options);
  const auto expected = gradients(copies, grad_output.contiguous(), options);
  for (size_t i = 0; i < result.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(result[i], IsEqualTo(expected[i]));
  }
}

} // namespace half_gradients_test
