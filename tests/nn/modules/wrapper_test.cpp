// MultiHeadAttentionWrapper with so many tokens that its heads are computed
// together.

#include <support/close.h>
#include <support/test.h>

#include <sstream>

namespace wrapper_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kTokens = 150;
constexpr int64_t kHeadSize = 8;

MultiHeadAttentionWrapperOptions three_heads() {
  return MultiHeadAttentionWrapperOptions(12, kHeadSize, kTokens, 3);
}

torch::Tensor draw_input() {
  torch::manual_seed(1);
  return torch::randn({2, kTokens, 12}, torch::kDouble).requires_grad_();
}

MultiHeadAttentionWrapper make_wrapper(
    const MultiHeadAttentionWrapperOptions& options) {
  torch::manual_seed(2);
  MultiHeadAttentionWrapper wrapper(options);
  wrapper->to(torch::kDouble);
  return wrapper;
}

CausalAttentionImpl& head(MultiHeadAttentionWrapper& wrapper, size_t i) {
  return *wrapper->heads->ptr(i)->as<CausalAttentionImpl>();
}

/// Returns the heads' outputs, computed one by one.
torch::Tensor one_by_one(
    MultiHeadAttentionWrapper& wrapper,
    const torch::Tensor& x) {
  std::vector<torch::Tensor> contexts;
  for (size_t i = 0; i < wrapper->heads->size(); ++i) {
    contexts.push_back(head(wrapper, i).forward(x));
  }
  return torch::cat(contexts, -1);
}

} // namespace

TEST_CASE("A wrapper's heads together equal the reference, with gradients") {
  const auto options = GENERATE(
      three_heads(),
      three_heads().qkv_bias(true).scale(0.4),
      three_heads().causal(false),
      three_heads().window(20),
      three_heads().causal(false).window(20).window_after(3));
  const auto x = draw_input();
  const auto run = [&](MultiHeadAttentionWrapperOptions with_kernel,
                       Kernel kernel) {
    auto wrapper = make_wrapper(with_kernel.kernel(kernel));
    auto leaves = wrapper->parameters();
    leaves.push_back(x);
    auto output = wrapper(x);
    // Joined by torch::cat where they are computed one by one.
    const auto last = output.grad_fn()->name();
    CHECK((last.find("Cat") == std::string::npos) == (kernel == Kernel::kAuto));
    auto results = torch::autograd::grad({output.pow(2).sum()}, leaves);
    results.push_back(output.detach());
    return results;
  };
  const auto together = run(options, Kernel::kAuto);
  const auto reference = run(options, Kernel::kReference);
  REQUIRE(together.size() == reference.size());
  for (size_t i = 0; i < together.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(together[i], IsCloseTo(reference[i]));
  }
}

TEST_CASE("A wrapper drops other weights in each head, and keeps the mean") {
  auto wrapper = make_wrapper(three_heads().dropout(0.5));
  {
    // Heads that differ in what they drop alone.
    const torch::NoGradGuard no_grad;
    for (size_t i = 1; i < 3; ++i) {
      const auto from = head(wrapper, 0).parameters();
      const auto to = head(wrapper, i).parameters();
      for (size_t p = 0; p < from.size(); ++p) {
        to[p].copy_(from[p]);
      }
    }
  }
  const auto x = draw_input();
  const auto head_of = [](const torch::Tensor& all, int64_t i) {
    return all.narrow(-1, i * kHeadSize, kHeadSize);
  };
  wrapper->eval();
  const auto kept = head_of(wrapper(x), 0).detach();
  wrapper->train();
  auto sum = torch::zeros_like(kept);
  constexpr int64_t kDraws = 200;
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    const auto dropped = wrapper(x).detach();
    CHECK_FALSE(torch::allclose(head_of(dropped, 0), head_of(dropped, 1)));
    CHECK_FALSE(torch::allclose(head_of(dropped, 1), head_of(dropped, 2)));
    for (int64_t i = 0; i < 3; ++i) {
      sum += head_of(dropped, i);
    }
  }
  // Only rows that see many keys; the error of the mean is about a tenth of it.
  const auto rows = [](const torch::Tensor& all) { return all.slice(1, 50); };
  const auto error = (rows(sum) / (3 * kDraws) - rows(kept)).norm();
  CHECK(error.item<double>() < 0.1 * rows(kept).norm().item<double>());
}

TEST_CASE("A wrapper computes heads that differ one by one") {
  auto wrapper = make_wrapper(three_heads());
  const auto x = draw_input();
  SECTION("in an option") {
    head(wrapper, 1).options.causal(false);
  }
  SECTION("in scale") {
    head(wrapper, 1).options.scale(0.1);
  }
  SECTION("in the window") {
    head(wrapper, 0).options.window(9);
  }
  SECTION("in the window after") {
    for (size_t i = 0; i < 3; ++i) {
      head(wrapper, i).options.causal(false);
    }
    head(wrapper, 2).options.window_after(7);
  }
  SECTION("in dropout") {
    head(wrapper, 1).dropout->options.p(1);
  }
  SECTION("in training") {
    for (size_t i = 0; i < 3; ++i) {
      head(wrapper, i).dropout->options.p(1);
    }
    head(wrapper, 1).eval();
  }
  SECTION("in a bias") {
    head(wrapper, 2).W_key =
        head(wrapper, 2).replace_module("W_key", torch::nn::Linear(12, 8));
    wrapper->to(torch::kDouble);
  }
  SECTION("in the kernel") {
    head(wrapper, 2).options.kernel(Kernel::kReference);
  }
  SECTION("in size") {
    head(wrapper, 1).W_value =
        head(wrapper, 1).replace_module("W_value", torch::nn::Linear(12, 5));
    wrapper->to(torch::kDouble);
    CHECK(wrapper(x).size(-1) == 2 * kHeadSize + 5);
  }
  CHECK_THAT(wrapper(x), IsEqualTo(one_by_one(wrapper, x)));
}

TEST_CASE("A wrapper keeps to the context_length of each head") {
  auto wrapper = make_wrapper(three_heads());
  const auto x = draw_input();
  CHECK_NOTHROW(wrapper(x));
  head(wrapper, 2).options.context_length(kTokens - 1);
  CHECK_THROWS_AS(wrapper(x), c10::Error);
}

TEST_CASE("The rule of a wrapper is that of its heads, and is printed") {
  auto wrapper = make_wrapper(
      three_heads().causal(false).scale(0.4).window(5).window_after(3));
  for (size_t i = 0; i < 3; ++i) {
    std::ostringstream text;
    head(wrapper, i).pretty_print(text);
    CHECK_THAT(
        text.str(),
        ContainsText(", scale=0.4, window=5, window_after=3, ") &&
            ContainsText(", causal=false, "));
  }
}

} // namespace wrapper_test
