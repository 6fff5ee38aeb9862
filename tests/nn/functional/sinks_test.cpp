// Sinks: a score more of each head, without a value.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

namespace sinks_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kHeads = 4;

struct Operands {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor sinks = torch::tensor({-1.0, 0.0, 2.0, 5.0}, torch::kDouble);

  Operands(int64_t T, int64_t S)
      : query(torch::randn({2, kHeads, T, 8}, torch::kDouble)),
        key(torch::randn({2, 2, S, 8}, torch::kDouble)),
        value(torch::randn({2, 2, S, 8}, torch::kDouble)) {
    for (auto* x : {&query, &key, &value, &sinks}) {
      x->requires_grad_();
    }
  }

  torch::Tensor attend(const Options& options) const {
    return F::scaled_dot_product_attention(
        query, key, value, Options(options).enable_gqa(true).sinks(sinks));
  }

  std::vector<torch::Tensor> gradients(
      const torch::Tensor& output,
      const torch::Tensor& grad) const {
    return torch::autograd::grad({output}, {query, key, value, sinks}, {grad});
  }

  /// By one more key of zeros, whose bias is the sink, and a value of zeros.
  torch::Tensor by_one_more_key(const torch::Tensor& hidden) const {
    const auto more = [](const torch::Tensor& x) {
      return torch::cat({x, torch::zeros_like(x.slice(2, 0, 1))}, 2);
    };
    const auto scores =
        torch::where(hidden, -std::numeric_limits<double>::infinity(), 0.0);
    const auto bias = torch::cat(
        {scores.expand({kHeads, query.size(2), key.size(2)}),
         sinks.view({-1, 1, 1}).expand({kHeads, query.size(2), 1})},
        -1);
    return F::scaled_dot_product_attention(
        query,
        more(key),
        more(value),
        Options().enable_gqa(true).bias(bias).kernel(Kernel::kReference));
  }
};

} // namespace

TEST_CASE("A sink is a key more that has no value, with gradients") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const int64_t T = GENERATE(1, 3, 70);
  const int64_t S = GENERATE(1, 80, 1100);
  CAPTURE(kernel, T, S);
  torch::manual_seed(1);
  const Operands x(T, S);
  // A causal mask, as `causal` puts queries before the first key if T > S.
  const auto hidden = torch::arange(S) >
      torch::arange(T).unsqueeze(1) + std::max<int64_t>(S - T, 0);
  const auto grad = torch::randn({2, kHeads, T, 8}, torch::kDouble);
  const auto output = x.attend(Options().kernel(kernel).mask(hidden));
  const auto expected = x.by_one_more_key(hidden);
  CHECK_THAT(output.detach(), IsCloseTo(expected.detach()));
  const auto found = x.gradients(output, grad);
  const auto wanted = x.gradients(expected, grad);
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(found[i], IsCloseTo(wanted[i]));
  }
}

TEST_CASE("Gradients of sinks are finite differences") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const bool capped = GENERATE(false, true);
  CAPTURE(kernel, capped);
  torch::manual_seed(2);
  const Operands x(5, 9);
  auto options = Options().kernel(kernel).causal(true).chunk(4);
  if (capped) {
    options.softcap(1.5).alibi_slopes(
        torch::tensor({0.1, 0.2, 0.3, 0.4}, torch::kDouble));
  }
  const auto grad = torch::randn({2, kHeads, 5, 8}, torch::kDouble);
  const auto found = x.gradients(x.attend(options), grad).back();
  const torch::NoGradGuard no_grad;
  const auto value_at = [&](int64_t h, double step) {
    auto moved = x;
    moved.sinks = x.sinks.detach().clone();
    moved.sinks[h] += step;
    return (moved.attend(options) * grad).sum().item<double>();
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    CAPTURE(h);
    const auto difference = (value_at(h, 1e-5) - value_at(h, -1e-5)) / 2e-5;
    CHECK(found[h].item<double>() == Approx(difference).epsilon(1e-6));
  }
}

TEST_CASE("Weights beside a sink add up to what it leaves") {
  torch::manual_seed(3);
  const Operands x(5, 9);
  const auto [output, weights] = F::scaled_dot_product_attention_with_weights(
      x.query, x.key, x.value, Options().enable_gqa(true).sinks(x.sinks));
  CHECK(weights.sum(-1).max().item<double>() < 1);
  CHECK_THAT(
      output.detach(),
      IsCloseTo(x.attend(Options().kernel(Kernel::kFused)).detach()));
  const auto scores = torch::randn({1, kHeads, 3, 6}, torch::kDouble);
  const auto exps = (scores / 2).exp();
  CHECK_THAT(
      F::attention_weights(scores, 4, Options().sinks(x.sinks)).detach(),
      IsCloseTo(
          (exps /
           (exps.sum(-1, true) + x.sinks.exp().view({-1, 1, 1}).detach()))));
}

TEST_CASE("A query without keys gives zeros beside a sink") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const int64_t T = GENERATE(1, 40);
  CAPTURE(kernel, T);
  torch::manual_seed(4);
  const Operands x(T, 50);
  auto hidden = torch::zeros({2, 1, T, 50}, torch::kBool);
  hidden[1].fill_(true);
  const auto output = x.attend(Options().kernel(kernel).mask(hidden));
  CHECK_THAT(output[1].detach(), IsEqualTo(torch::zeros_like(output[1])));
  const auto found = x.gradients(output, torch::ones_like(output));
  for (const auto& gradient : found) {
    CHECK(gradient.isfinite().all().item<bool>());
  }
  CHECK_THAT(found[0][1], IsEqualTo(torch::zeros_like(found[0][1])));
}

TEST_CASE("Sinks are computed with in float32 beside half precision") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  CAPTURE(kernel, dtype);
  torch::manual_seed(5);
  const Operands x(20, 30);
  const auto sinks = torch::tensor({2.0, 2.0005, 2.001, 2.0015}, torch::kFloat);
  const auto run = [&](torch::ScalarType of) {
    const auto leaf = sinks.detach().clone().requires_grad_();
    const auto output = F::scaled_dot_product_attention(
        x.query.detach().to(dtype).to(of),
        x.key.detach().to(dtype).to(of),
        x.value.detach().to(dtype).to(of),
        Options().enable_gqa(true).sinks(leaf).kernel(kernel));
    output.sum().backward();
    return std::tuple(output.detach().to(torch::kDouble), leaf.grad());
  };
  const auto [output, gradient] = run(dtype);
  const auto [expected, wide] = run(torch::kDouble);
  const auto expected_gradient = wide.to(torch::kFloat);
  CHECK(gradient.scalar_type() == torch::kFloat);
  CHECK_THAT(output, IsCloseTo(expected, {2e-2, 1e-2}));
  CHECK_THAT(gradient, IsCloseTo(expected_gradient, {2e-2, 1e-1}));
}

TEST_CASE("Gradients of gradients pass through sinks") {
  torch::manual_seed(6);
  const Operands x(4, 6);
  const auto second = [&](Kernel kernel) {
    const auto output = x.attend(Options().kernel(kernel).causal(true));
    const auto first = torch::autograd::grad(
        {output}, {x.sinks}, {torch::ones_like(output)}, true, true);
    return torch::autograd::grad({first[0].square().sum()}, {x.query, x.sinks});
  };
  const auto fused = second(Kernel::kFused);
  const auto reference = second(Kernel::kReference);
  for (size_t i = 0; i < fused.size(); ++i) {
    CHECK_THAT(fused[i], IsCloseTo(reference[i]));
  }
}

TEST_CASE("Tensors that our kernels do not read have sinks too") {
  torch::manual_seed(7);
  const Operands x(4, 6);
  const auto expected = x.attend(Options().kernel(Kernel::kReference));
  auto negated = x;
  negated.query = at::_neg_view(x.query.neg());
  CHECK_THAT(
      negated.attend(Options().kernel(Kernel::kFused)).detach(),
      IsCloseTo(expected.detach()));
}

TEST_CASE("Sinks are refused by name if they do not fit") {
  const auto x = torch::randn({1, 2, 4, 4});
  const auto attend = [&](const torch::Tensor& query, const torch::Tensor& s) {
    return F::scaled_dot_product_attention(
        query, query, query, Options().sinks(s));
  };
  THROWS_WITH(
      attend(x, torch::zeros({3})),
      "expected floating-point sinks of shape (H) = [2], but got Float of "
      "shape [3]");
  THROWS_WITH(
      attend(x, torch::zeros({2}, torch::kLong)),
      "expected floating-point sinks of shape (H) = [2], but got Long");
  THROWS_WITH(
      attend(x[0], torch::zeros({2})),
      "expected, with sinks, a query of shape (B, H, T, D), but got [2, 4, 4]");
}

} // namespace sinks_test
