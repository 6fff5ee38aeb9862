// The duties of an operator of LibTorch, tried on our own kernels on the CPU.

#include <support/close.h>
#include <support/test.h>

#include <ATen/autocast_mode.h>

namespace autograd_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

/// (2, 3, 40, 8) each.
struct Leaves {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  explicit Leaves(torch::ScalarType dtype = torch::kFloat) {
    for (auto* x : {&query, &key, &value}) {
      *x = torch::randn({2, 3, 40, 8}, dtype).requires_grad_();
    }
  }

  torch::Tensor attend(const Options& options) const {
    return F::scaled_dot_product_attention(query, key, value, options);
  }
};

Options causal(Kernel kernel) {
  return Options().causal(true).kernel(kernel);
}

} // namespace

TEST_CASE("The gradient of the gradient is the reference's") {
  torch::manual_seed(1);
  const Leaves leaves(torch::kDouble);
  const auto second = [&](Kernel kernel) {
    const auto first = torch::autograd::grad(
        {leaves.attend(causal(kernel)).pow(2).sum()},
        {leaves.query, leaves.key, leaves.value},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    return torch::autograd::grad(
        {first[0].pow(2).sum() + first[1].sin().sum() + first[2].sum()},
        {leaves.query, leaves.key, leaves.value});
  };
  const auto fused = second(Kernel::kFused);
  const auto reference = second(Kernel::kReference);
  for (size_t i = 0; i < 3; ++i) {
    CHECK_THAT(fused[i], IsCloseTo(reference[i]));
  }
}

TEST_CASE("Inputs that depend on each other keep their own gradients") {
  torch::manual_seed(8);
  const auto x = torch::randn({2, 3, 12, 4}, torch::kDouble).requires_grad_();
  const auto run = [&](Kernel kernel, bool create_graph) {
    // Query and key are one tensor, from which value is made.
    const auto y =
        F::scaled_dot_product_attention(x, x, x.sin(), causal(kernel));
    return torch::autograd::grad(
        {y.pow(2).sum()}, {x}, {}, /*retain_graph=*/true, create_graph)[0];
  };
  const auto expected = run(Kernel::kReference, false);
  CHECK_THAT(run(Kernel::kFused, false), IsCloseTo(expected));
  CHECK_THAT(run(Kernel::kFused, true).detach(), IsCloseTo(expected));
}

TEST_CASE("A hook of an input is called once") {
  const Leaves leaves;
  const auto query = leaves.query * 1;
  int calls = 0;
  query.register_hook([&](const torch::Tensor& gradient) {
    ++calls;
    return gradient;
  });
  const auto output = F::scaled_dot_product_attention(
      query, leaves.key, leaves.value, causal(Kernel::kFused));
  torch::autograd::grad(
      {output.sum()},
      {leaves.query},
      {},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  CHECK(calls == 1);
}

TEST_CASE("The gradient of the gradient drops the same weights") {
  torch::manual_seed(1);
  const auto x = [](int64_t heads) {
    return torch::randn({2, heads, 6, 4}, torch::kDouble);
  };
  const auto key = x(2);
  const auto value = x(2);
  const auto slope = [&](const torch::Tensor& query, bool differentiable) {
    torch::manual_seed(2);
    const auto output = functional::scaled_dot_product_attention(
        query,
        key,
        value,
        causal(Kernel::kFused).dropout(0.5).enable_gqa(true));
    return torch::autograd::grad(
        {output.pow(2).sum()}, {query}, {}, {}, differentiable)[0];
  };
  const auto query = x(4).requires_grad_();
  const auto by_operators = slope(query, /*differentiable=*/true);
  CHECK_THAT(by_operators.detach(), IsCloseTo(slope(query, false)));

  const auto direction = x(4);
  const auto second =
      torch::autograd::grad({(by_operators * direction).sum()}, {query})[0];
  constexpr double kStep = 1e-5;
  const auto slope_at = [&](double step) {
    return slope((query.detach() + step * direction).requires_grad_(), false);
  };
  const auto expected = (slope_at(kStep) - slope_at(-kStep)) / (2 * kStep);
  CHECK_THAT(second, IsCloseTo(expected, {1e-5, 1e-7}));
}

TEST_CASE("Only what needs a gradient gets one") {
  torch::manual_seed(2);
  Leaves leaves;
  leaves.key = leaves.key.detach();
  const auto output = leaves.attend(causal(Kernel::kFused));
  output.sum().backward();
  CHECK(leaves.query.grad().defined());
  CHECK_FALSE(leaves.key.grad().defined());
  CHECK(leaves.value.grad().defined());
}

TEST_CASE("Without a gradient nothing is recorded, and the bits are the same") {
  torch::manual_seed(3);
  const Leaves leaves;
  const auto recorded = leaves.attend(causal(Kernel::kFused));
  CHECK(recorded.requires_grad());
  {
    const torch::NoGradGuard no_grad;
    auto output = leaves.attend(causal(Kernel::kFused));
    CHECK_FALSE(output.requires_grad());
    CHECK_THAT(output, IsEqualTo(recorded.detach()));
  }
  const c10::InferenceMode inference;
  const auto output = leaves.attend(causal(Kernel::kFused));
  CHECK(output.is_inference());
  CHECK_THAT(output, IsEqualTo(recorded.detach()));
}

TEST_CASE("The result may be changed in place") {
  torch::manual_seed(4);
  const Leaves leaves;
  torch::Tensor output;
  {
    const torch::NoGradGuard no_grad;
    output = leaves.attend(causal(Kernel::kFused));
  }
  const auto before = output.clone();
  // The factor gives the output a gradient, though it was made without any.
  const auto factor = torch::full({1}, 2.0).requires_grad_();
  output.mul_(factor);
  output.sum().backward();
  CHECK_THAT(output.detach(), IsEqualTo(before * 2));
  CHECK_THAT(factor.grad(), IsCloseTo(before.sum().view({1})));
}

TEST_CASE("The output may be changed in place before the backward pass") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  const int64_t rank = GENERATE(2, 3, 4, 5);
  const double dropout = GENERATE(0.0, 0.4);
  const auto change = GENERATE(
      "y += x",
      "a view",
      "without a graph",
      "through detach",
      "after it was read");
  CAPTURE(dtype, rank, dropout, change);
  // Over several tiles, and with gradients of all that may have one.
  std::vector<int64_t> sizes = {70, 8};
  while (static_cast<int64_t>(sizes.size()) < rank) {
    sizes.insert(sizes.begin(), 2);
  }
  torch::manual_seed(4);
  std::vector<torch::Tensor> leaves;
  for (int i = 0; i < 4; ++i) {
    leaves.push_back(torch::randn(sizes, dtype).requires_grad_());
  }
  leaves.push_back(torch::randn({70, 70}, dtype).requires_grad_());
  const auto run = [&](bool in_place) {
    torch::manual_seed(5);
    const auto made = F::scaled_dot_product_attention(
        leaves[0],
        leaves[1],
        leaves[2],
        causal(Kernel::kFused).bias(leaves[4]).dropout(dropout));
    auto y = in_place ? made : made.clone();
    if (std::string(change) == "y += x") {
      y += leaves[3];
    } else if (std::string(change) == "a view") {
      y.slice(-1, 1, 3).mul_(3);
    } else if (std::string(change) == "through detach") {
      y.detach().neg_();
    } else if (std::string(change) == "after it was read") {
      y = y * 1;
      made.detach().mul_(in_place ? 2 : 1);
    } else {
      const torch::NoGradGuard no_grad;
      y.zero_();
    }
    return torch::autograd::grad(
        {(y * leaves[3]).sum()},
        {leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]},
        {},
        /*retain_graph=*/true);
  };
  const auto expected = run(false);
  const auto actual = run(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(actual[i], IsEqualTo(expected[i]));
  }
}

TEST_CASE("A changed output has second derivatives and two backward passes") {
  torch::manual_seed(6);
  const Leaves leaves(torch::kDouble);
  const auto slopes = [&](bool in_place) {
    auto y = leaves.attend(causal(Kernel::kFused));
    if (in_place) {
      y += leaves.query;
    } else {
      y = y + leaves.query;
    }
    const auto first = torch::autograd::grad(
        {y.pow(3).sum()},
        {leaves.query, leaves.value},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    const auto again = torch::autograd::grad(
        {y.pow(3).sum()}, {leaves.query}, {}, /*retain_graph=*/true);
    CHECK_THAT(again[0], IsCloseTo(first[0].detach()));
    return torch::autograd::grad(
        {first[0].sin().sum() + first[1].sum()}, {leaves.query, leaves.key});
  };
  const auto expected = slopes(false);
  const auto actual = slopes(true);
  CHECK_THAT(actual[0], IsCloseTo(expected[0]));
  CHECK_THAT(actual[1], IsCloseTo(expected[1]));
}

TEST_CASE("What is saved and then changed in place is an error") {
  Leaves leaves;
  auto query = leaves.query * 1;
  const auto output = F::scaled_dot_product_attention(
      query, leaves.key, leaves.value, causal(Kernel::kFused));
  query.add_(1);
  THROWS_WITH(output.sum().backward(), "modified by an inplace operation");
}

TEST_CASE("What was saved is freed by the first backward pass") {
  Leaves leaves;
  const auto output = leaves.attend(causal(Kernel::kFused));
  output.sum().backward({}, /*retain_graph=*/true);
  const auto once = leaves.query.grad().clone();
  output.sum().backward();
  CHECK_THAT(leaves.query.grad(), IsEqualTo(once * 2));
  THROWS_WITH(
      output.sum().backward(), "backward through the graph a second time");
}

TEST_CASE("The bias may need a gradient") {
  torch::manual_seed(5);
  const Leaves leaves(torch::kDouble);
  const auto bias_gradient = [&](Kernel kernel) {
    const auto bias =
        torch::linspace(0, 1, 1600, torch::kDouble).view({40, 40});
    const auto leaf = bias.detach().requires_grad_();
    leaves.attend(Options().kernel(kernel).bias(leaf)).pow(2).sum().backward();
    return leaf.grad();
  };
  CHECK_THAT(
      bias_gradient(Kernel::kFused),
      IsCloseTo(bias_gradient(Kernel::kReference)));
}

TEST_CASE("The same bits for any number of threads, dropout included") {
  const auto threads = at::get_num_threads();
  const auto run = [&](int count) {
    at::set_num_threads(count);
    torch::manual_seed(6);
    const Leaves leaves;
    const auto output = leaves.attend(causal(Kernel::kFused).dropout(0.3));
    auto all = torch::autograd::grad(
        {output.pow(2).sum()}, {leaves.query, leaves.key, leaves.value});
    all.push_back(output.detach());
    return all;
  };
  const auto one = run(1);
  for (const auto count : {2, 8}) {
    const auto many = run(count);
    for (size_t i = 0; i < one.size(); ++i) {
      CHECK_THAT(many[i], IsEqualTo(one[i]));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("The manual seed decides what is dropped") {
  torch::manual_seed(7);
  const Leaves leaves;
  const auto options = causal(Kernel::kFused).dropout(0.5);
  const auto first = leaves.attend(options);
  const auto second = leaves.attend(options);
  torch::manual_seed(7);
  const Leaves again;
  CHECK_THAT(again.attend(options).detach(), IsEqualTo(first.detach()));
  CHECK_FALSE(second.equal(first));
}

TEST_CASE("Autocast gives bfloat16, as LibTorch's operator does") {
  torch::manual_seed(8);
  const Leaves leaves;
  const auto expected = F::scaled_dot_product_attention(
      leaves.query.to(torch::kBFloat16),
      leaves.key.to(torch::kBFloat16),
      leaves.value.to(torch::kBFloat16),
      causal(Kernel::kFused));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto output = leaves.attend(causal(Kernel::kFused));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK_THAT(output.detach(), IsEqualTo(expected.detach()));
}

TEST_CASE("A dropped weight is neither in the output nor in the gradients") {
  torch::manual_seed(9);
  // One key in two is dropped: with values of one-hot rows the output shows
  // which weights there are.
  const auto query = torch::randn({1, 2, 50, 8}, torch::kDouble);
  const auto key = torch::randn({1, 2, 50, 8}, torch::kDouble);
  const auto value = torch::eye(50, torch::kDouble)
                         .expand({1, 2, 50, 50})
                         .clone()
                         .requires_grad_();
  const auto output = F::scaled_dot_product_attention(
      query, key, value, Options().kernel(Kernel::kFused).dropout(0.5));
  const auto weights = torch::softmax(
      torch::matmul(query, key.transpose(-2, -1)) / std::sqrt(8.0), -1);
  const auto kept = output.detach().ne(0);
  CHECK(
      kept.to(torch::kDouble).mean().item<double>() ==
      Approx(0.5).margin(0.05));
  CHECK_THAT(
      output.detach(), IsCloseTo(weights * kept * 2, Tolerance(1e-9, 1e-12)));
  const auto grad = torch::randn_like(output);
  output.backward(grad);
  CHECK_THAT(
      value.grad(),
      IsCloseTo(
          torch::matmul((weights * kept * 2).transpose(-2, -1), grad),
          Tolerance(1e-9, 1e-12)));
}

TEST_CASE("Heads are shared without a batch too") {
  torch::manual_seed(11);
  const auto query = torch::randn({6, 14, 8}).requires_grad_();
  const auto key = torch::randn({2, 19, 8}).requires_grad_();
  const auto value = torch::randn({2, 19, 5}).requires_grad_();
  const auto run = [&](Kernel kernel) {
    const auto output = F::scaled_dot_product_attention(
        query, key, value, Options().enable_gqa(true).kernel(kernel));
    auto results =
        torch::autograd::grad({output.pow(2).sum()}, {query, key, value});
    results.push_back(output.detach());
    return results;
  };
  const auto fused = run(Kernel::kFused);
  const auto reference = run(Kernel::kReference);
  for (size_t i = 0; i < fused.size(); ++i) {
    CHECK_THAT(fused[i], IsCloseTo(reference[i], {1e-5, 1e-5}));
  }
}

} // namespace autograd_test
