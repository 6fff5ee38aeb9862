// A function of the caller's that changes weights after the softmax.

#include <support/close.h>
#include <support/test.h>

#include <limits>

namespace weight_function_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

torch::Tensor numbers(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

} // namespace

TEST_CASE("The function changes weights, in every way they are computed") {
  torch::manual_seed(1);
  const auto q = numbers({2, 4, 5, 3}).requires_grad_();
  const auto k = numbers({2, 4, 5, 3}).requires_grad_();
  const auto v = numbers({2, 4, 5, 3}).requires_grad_();
  const auto factor = torch::rand({4, 1, 1}, torch::kDouble).requires_grad_();
  // Some weights become negative, as in differential attention.
  const WeightFunction function = [&](const torch::Tensor& weights) {
    return weights * factor - 0.3 * weights.roll(1, /*dims=*/1) + 0.1;
  };
  const auto hidden = torch::ones({5, 5}, torch::kBool).triu(1);
  const auto expected = [&] {
    const auto scores = torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(3.0);
    const auto weights = torch::softmax(
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
        -1);
    return function(weights).masked_fill(hidden, 0);
  };
  const auto options = Options().causal(true).weights(function);
  const auto [output, weights] =
      F::scaled_dot_product_attention_with_weights(q, k, v, options);
  CHECK_THAT(weights.detach(), IsCloseTo(expected().detach()));
  CHECK_THAT(
      F::attention_weights(F::attention_scores(q, k), 3, options).detach(),
      IsCloseTo(expected().detach()));
  const auto y = F::scaled_dot_product_attention(q, k, v, options);
  const auto expected_y = torch::matmul(expected(), v);
  CHECK_THAT(y.detach(), IsCloseTo(expected_y.detach()));
  CHECK_THAT(output.detach(), IsCloseTo(expected_y.detach()));
  const auto slopes = torch::autograd::grad({y.sin().sum()}, {q, k, v, factor});
  const auto expected_slopes =
      torch::autograd::grad({expected_y.sin().sum()}, {q, k, v, factor});
  for (size_t i = 0; i < slopes.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(slopes[i], IsCloseTo(expected_slopes[i]));
  }
}

TEST_CASE(
    "The function comes before dropout and after the function of scores") {
  torch::manual_seed(2);
  const auto q = numbers({1, 2, 6, 4});
  const auto v = torch::eye(6, torch::kDouble).expand({1, 2, 6, 6});
  std::vector<std::string> calls;
  const auto options = Options()
                           .dropout(0.5)
                           .scores([&](const torch::Tensor& scores) {
                             calls.emplace_back("scores");
                             return scores;
                           })
                           .weights([&](const torch::Tensor& weights) {
                             calls.emplace_back("weights");
                             CHECK(weights.gt(0).all().item<bool>());
                             return torch::ones_like(weights);
                           });
  const auto output = F::scaled_dot_product_attention(q, q, v, options);
  CHECK(calls == std::vector<std::string>{"scores", "weights"});
  CHECK((output.eq(0) | output.eq(2)).all().item<bool>());
  CHECK(output.eq(0).any().item<bool>());
}

TEST_CASE(
    "The function is called for each packed sequence and without a batch") {
  torch::manual_seed(3);
  const auto q = numbers({1, 2, 7, 4});
  const WeightFunction function = [](const torch::Tensor& weights) {
    return weights.pow(2);
  };
  const auto alone = Options().causal(true).weights(function);
  auto packed = alone;
  packed.cu_seqlens(torch::tensor({0, 3, 7}));
  const auto part = [&](int64_t begin, int64_t end) {
    const auto x = q.slice(2, begin, end);
    return F::scaled_dot_product_attention(x, x, x, alone);
  };
  CHECK_THAT(
      F::scaled_dot_product_attention(q, q, q, packed),
      IsCloseTo(torch::cat({part(0, 3), part(3, 7)}, 2)));
  const auto x = numbers({4, 5, 3});
  const auto few = numbers({2, 5, 3});
  auto sizes = torch::IntArrayRef();
  auto shared =
      Options().enable_gqa(true).weights([&](const torch::Tensor& weights) {
        sizes = weights.sizes();
        CHECK(sizes == torch::IntArrayRef({4, 5, 5}));
        return weights * 2;
      });
  CHECK_THAT(
      F::scaled_dot_product_attention(x, few, few, shared),
      IsCloseTo(
          2 *
          F::scaled_dot_product_attention(
              x, few, few, Options().enable_gqa(true))));
}

TEST_CASE("Padding of NaN stays hidden beside a function of weights") {
  torch::manual_seed(4);
  const auto q = numbers({2, 1, 3, 4});
  auto k = numbers({2, 1, 5, 4});
  auto v = numbers({2, 1, 5, 4});
  const auto options =
      Options()
          .key_lengths(torch::tensor({2, 0}))
          .weights([](const torch::Tensor& weights) { return weights - 1; });
  const auto expected = F::scaled_dot_product_attention(q, k, v, options);
  CHECK(expected[1].eq(0).all().item<bool>());
  k.slice(2, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  v.slice(2, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  k.slice(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  CHECK_THAT(
      F::scaled_dot_product_attention(q, k, v, options), IsEqualTo(expected));
}

TEST_CASE("Functions of weights that give the wrong are refused") {
  const auto q = torch::randn({1, 2, 3, 4});
  const auto run = [&](const WeightFunction& function, Kernel kernel) {
    return F::scaled_dot_product_attention(
        q, q, q, Options().weights(function).kernel(kernel));
  };
  const auto same = [](const torch::Tensor& weights) { return weights; };
  THROWS_WITH(
      run(same, Kernel::kFused),
      "Kernel::kFused never forms the weights, which a function is to change");
  THROWS_WITH(
      run([](const torch::Tensor& w) { return w.sum(-1); }, Kernel::kAuto),
      "expected `weights` to give what it gets");
  THROWS_WITH(
      run([](const torch::Tensor& w) { return w.to(torch::kDouble); },
          Kernel::kAuto),
      "expected `weights` to give what it gets");
  THROWS_WITH(
      run([](const torch::Tensor&) { return torch::Tensor(); }, Kernel::kAuto),
      "the tensor that `weights` gave is undefined");
}

} // namespace weight_function_test
