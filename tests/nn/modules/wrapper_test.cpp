// MultiHeadAttentionWrapper with so many tokens that its heads are computed
// together.

#include <support/close.h>
#include <support/test.h>

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kTokens = 150;
constexpr int64_t kHeadSize = 8;

MultiHeadAttentionOptions three_heads() {
  return MultiHeadAttentionOptions(12, kHeadSize, kTokens, 3);
}

torch::Tensor draw_input() {
  torch::manual_seed(1);
  return torch::randn({2, kTokens, 12}, torch::kDouble).requires_grad_();
}

MultiHeadAttentionWrapper make_wrapper(
    const MultiHeadAttentionOptions& options) {
  torch::manual_seed(2);
  MultiHeadAttentionWrapper wrapper(options);
  wrapper->to(torch::kDouble);
  return wrapper;
}

CausalAttentionImpl& head(MultiHeadAttentionWrapper& wrapper, size_t i) {
  return *wrapper->heads->ptr(i)->as<CausalAttentionImpl>();
}

/// What the heads give one by one.
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
      three_heads().window(20));
  const auto x = draw_input();
  const auto run = [&](MultiHeadAttentionOptions with_kernel, Kernel kernel) {
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

TEST_CASE("A wrapper drops weights of all its heads") {
  auto wrapper = make_wrapper(three_heads().dropout(0.5));
  const auto x = draw_input();
  wrapper->eval();
  const auto kept = wrapper(x);
  wrapper->train();
  const auto dropped = wrapper(x);
  for (int64_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    const auto part = [&](const torch::Tensor& all) {
      return all.narrow(-1, i * kHeadSize, kHeadSize);
    };
    CHECK_FALSE(torch::allclose(part(kept), part(dropped)));
  }
}

TEST_CASE("A wrapper computes heads that differ one by one") {
  auto wrapper = make_wrapper(three_heads());
  const auto x = draw_input();
  SECTION("in an option") {
    head(wrapper, 1).options.causal(false);
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
