// A bias of half precision keeps its own bits when it is added to scores.

#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <utility>
#include <vector>

namespace added_scores_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kHeads = 3;

struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor slopes;
  torch::Tensor bias;
  torch::Tensor grad_output;
  Options options = Options().causal(true);

  /// Numbers that `dtype` has.
  Inputs(int64_t T, int64_t S, torch::ScalarType dtype) {
    const auto draw = [&](torch::IntArrayRef sizes) {
      return torch::randn(sizes, torch::kDouble).to(dtype).to(torch::kDouble);
    };
    query = draw({2, kHeads, T, 16});
    key = draw({2, kHeads, S, 16});
    value = draw({2, kHeads, S, 16});
    grad_output = draw({2, kHeads, T, 16});
    slopes = F::alibi_slopes(kHeads);
  }

  /// The output, and the gradients of all inputs that there are.
  std::vector<torch::Tensor> attend(
      torch::ScalarType dtype,
      torch::ScalarType added_dtype,
      Kernel kernel,
      bool learns_bias = false,
      bool by_libtorch = false) const {
    const auto leaf = [](const torch::Tensor& x, torch::ScalarType type) {
      return x.detach().to(type).clone().requires_grad_();
    };
    std::vector<torch::Tensor> inputs = {
        leaf(query, dtype), leaf(key, dtype), leaf(value, dtype)};
    auto all = options;
    all.kernel(kernel);
    if (slopes.defined()) {
      inputs.push_back(leaf(slopes, added_dtype));
      all.alibi_slopes(inputs.back());
    }
    if (bias.defined()) {
      all.bias(leaf(bias, added_dtype));
      if (learns_bias) {
        inputs.push_back(all.bias());
      } else {
        all.bias(all.bias().detach());
      }
    }
    // We do not read a negative view, as no tensor of a device.
    const auto output = F::scaled_dot_product_attention(
        by_libtorch ? at::_neg_view(inputs[0].neg()) : inputs[0],
        inputs[1],
        inputs[2],
        all);
    CHECK(output.scalar_type() == dtype);
    std::vector<torch::Tensor> result = {output.detach()};
    for (const auto& gradient :
         torch::autograd::grad({output}, inputs, {grad_output.to(dtype)})) {
      result.push_back(gradient);
    }
    return result;
  }
};

/// The largest difference, relative to the largest number.
double difference(const torch::Tensor& x, const torch::Tensor& expected) {
  return ((x.to(torch::kDouble) - expected).abs().max() / expected.abs().max())
      .item<double>();
}

void check(
    const std::vector<torch::Tensor>& result,
    const std::vector<torch::Tensor>& expected,
    double tolerance) {
  REQUIRE(result.size() == expected.size());
  for (size_t i = 0; i < result.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(result[i], expected[i]) < tolerance);
  }
}

double rounding(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 ? 2e-2 : 3e-3;
}

} // namespace

TEST_CASE("Slopes are learned in half precision as in float64") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto [T, S] = GENERATE(
      std::pair<int64_t, int64_t>{129, 1100},
      std::pair<int64_t, int64_t>{2, 700},
      std::pair<int64_t, int64_t>{600, 600});
  CAPTURE(dtype, kernel, T, S);
  torch::manual_seed(7);
  const Inputs inputs(T, S, dtype);
  const auto expected =
      inputs.attend(torch::kDouble, torch::kDouble, Kernel::kReference);
  check(inputs.attend(dtype, torch::kFloat, kernel), expected, rounding(dtype));
  if (kernel == Kernel::kFused) {
    check(
        inputs.attend(
            dtype,
            torch::kFloat,
            kernel,
            /*learns_bias=*/false,
            /*by_libtorch=*/true),
        expected,
        rounding(dtype));
  }
}

TEST_CASE("Slopes are learned as well by queries far from all keys") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(dtype, kernel);
  torch::manual_seed(11);
  // The last query stands at the last key, most of them before the first one.
  Inputs inputs(1300, 8, dtype);
  inputs.options = Options();
  check(
      inputs.attend(dtype, torch::kFloat, kernel),
      inputs.attend(torch::kDouble, torch::kDouble, Kernel::kReference),
      rounding(dtype));
}

TEST_CASE("Slopes are learned without a tensor of all scores") {
  torch::manual_seed(8);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const Inputs inputs(150, 320, dtype);
  const auto expected =
      inputs.attend(torch::kDouble, torch::kDouble, Kernel::kReference);
  check(
      inputs.attend(dtype, dtype, Kernel::kFused),
      expected,
      dtype == torch::kFloat ? 1e-5 : 1e-12);
  auto slopes = F::alibi_slopes(kHeads).requires_grad_();
  const auto query = inputs.query.to(torch::kFloat);
  const auto output = F::scaled_dot_product_attention(
      query, query, query, Options().alibi_slopes(slopes));
  CHECK(output.grad_fn()->name() == "TiledAttentionBackward");
}

TEST_CASE("A float32 bias is not rounded to the half precision of queries") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const int64_t T = GENERATE(1, 40);
  const bool learned = GENERATE(false, true);
  const bool slopes = GENERATE(false, true);
  CAPTURE(dtype, kernel, T, learned, slopes);
  torch::manual_seed(9);
  Inputs inputs(T, 300, dtype);
  // Distances from far away, of which half precision has no odd ones.
  inputs.bias = torch::arange(300, torch::kDouble) * 0.5 - 1000 +
      torch::randn({kHeads, T, 300}, torch::kDouble);
  inputs.bias = inputs.bias.to(torch::kFloat).to(torch::kDouble);
  if (!slopes) {
    inputs.slopes = torch::Tensor();
  }
  const auto expected = inputs.attend(
      torch::kDouble, torch::kDouble, Kernel::kReference, learned);
  check(
      inputs.attend(dtype, torch::kFloat, kernel, learned),
      expected,
      rounding(dtype));
}

TEST_CASE("The gradient of a half bias is summed before it is rounded") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  CAPTURE(dtype);
  torch::manual_seed(10);
  Inputs inputs(300, 64, dtype);
  inputs.slopes = torch::Tensor();
  // One for each key, or for each key of each head.
  const bool for_each_head = GENERATE(false, true);
  inputs.bias = torch::randn({for_each_head ? kHeads : 1, 1, 64})
                    .to(dtype)
                    .to(torch::kDouble);
  const auto result =
      inputs.attend(dtype, dtype, Kernel::kFused, /*learns_bias=*/true);
  const auto exact =
      inputs.attend(dtype, torch::kFloat, Kernel::kFused, /*learns_bias=*/true);
  CHECK(result.back().scalar_type() == dtype);
  CHECK_THAT(result.back(), IsEqualTo(exact.back().to(dtype)));
  for (size_t i = 0; i + 1 < result.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(result[i], IsEqualTo(exact[i]));
  }
}

TEST_CASE("A large bias of all keys rounds scores once") {
  // Old masks of models hide by -10000; rows that see nothing else keep it.
  const double value = GENERATE(-100.0, -1e4, 3e3);
  const int64_t T = GENERATE(3, 70);
  CAPTURE(value, T);
  torch::manual_seed(11);
  Inputs inputs(T, 70, torch::kFloat);
  inputs.slopes = torch::Tensor();
  inputs.options.causal(false);
  inputs.bias = torch::full({T, 70}, value, torch::kDouble);
  const auto exact =
      inputs.attend(torch::kDouble, torch::kDouble, Kernel::kReference);
  const auto python =
      inputs.attend(torch::kFloat, torch::kFloat, Kernel::kReference);
  const auto ours = inputs.attend(torch::kFloat, torch::kFloat, Kernel::kFused);
  for (size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    const auto error = [&](const torch::Tensor& x) {
      return (x.to(torch::kDouble) - exact[i]).abs().max().item<double>();
    };
    CHECK(error(ours[i]) <= 1.5 * error(python[i]) + 2e-6);
  }
  // Scores do not change if all keys move alike.
  CHECK(ours[2].sum(-2).abs().max().item<double>() <= 1e-5);
}

TEST_CASE("Low numbers of a bias hide no key that a block mask shows") {
  // A kernel may leave out keys far below the largest score of a row, but that
  // may be of a key that the block mask hides.
  const bool rises = GENERATE(false, true);
  constexpr int64_t T = 128;
  CAPTURE(rises);
  torch::manual_seed(12);
  Inputs inputs(T, T, torch::kFloat);
  inputs.slopes = torch::Tensor();
  const auto query = torch::arange(T).unsqueeze(1);
  const auto key = torch::arange(T);
  const auto sees = rises ? key.le(query) : key.ge(64).expand({T, T});
  inputs.bias = rises ? 8 * (key - query).to(torch::kDouble)
                      : torch::where(sees, -1e4, 0.0).to(torch::kDouble);
  inputs.options.causal(false).mask(sees.logical_not());
  const auto expected =
      inputs.attend(torch::kDouble, torch::kDouble, Kernel::kReference);
  inputs.options.mask({}).block_mask(
      BlockMask(MaskMod::blocks(sees, 1, 1), BlockMaskOptions(T)));
  const auto result =
      inputs.attend(torch::kFloat, torch::kFloat, Kernel::kFused);
  for (size_t i = 0; i < result.size(); ++i) {
    CAPTURE(i);
    // Scores of 1e4 are rounded to 1e-3.
    CHECK_THAT(
        result[i].to(torch::kDouble),
        IsCloseTo(expected[i], Tolerance{0, 2e-2}));
  }
}

TEST_CASE("The backward pass sums large scores as the forward pass did") {
  // Rows of weights sum to 1: gradients of values sum to those of outputs.
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kHalf);
  const int64_t T = GENERATE(1, 4, 8, 12, 16, 20, 33);
  const double size = GENERATE(1.0, 100.0, 1000.0);
  const int64_t S = GENERATE(12, 64, 200);
  CAPTURE(dtype, T, S, size);
  torch::manual_seed(13);
  // Products of two must be finite.
  const auto draw = [&](int64_t n) {
    return (torch::randn({1, 2, n, 64}) * size).to(dtype);
  };
  const auto value = torch::randn({1, 2, S, 64}).to(dtype).requires_grad_();
  const auto grad_output = torch::randn({1, 2, T, 64}).to(dtype);
  const auto output = F::scaled_dot_product_attention(
      draw(T), draw(S), value, Options().kernel(Kernel::kFused));
  const auto gradient =
      torch::autograd::grad({output}, {value}, {grad_output})[0];
  // Gradients of half precision are rounded before they are summed here.
  const auto eps = dtype == torch::kFloat ? 1e-5 : 3e-2;
  CHECK_THAT(
      gradient.to(torch::kDouble).sum(2),
      IsCloseTo(
          grad_output.to(torch::kDouble).sum(2),
          Tolerance{eps, eps * std::sqrt(static_cast<double>(T))}));
}

} // namespace added_scores_test
