// Heads that share keys and values, without a batch: query (H, T, D), key and
// value (G, S, D).

#include <support/close.h>
#include <support/test.h>

#include <set>
#include <string>
#include <vector>

namespace shared_heads_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kHeads = 6;
constexpr int64_t kKeyHeads = 2;

struct Leaves {
  std::vector<torch::Tensor> inputs;

  Leaves(int64_t T, int64_t S) {
    inputs = {
        torch::randn({kHeads, T, 8}),
        torch::randn({kKeyHeads, S, 8}),
        torch::randn({kKeyHeads, S, 5})};
    for (auto& x : inputs) {
      x.requires_grad_();
    }
  }

  /// Output, then gradients.
  std::vector<torch::Tensor> attend(const Options& options, bool batched) {
    const auto given = [&](size_t i) {
      return batched ? inputs[i].unsqueeze(0) : inputs[i];
    };
    auto output =
        F::scaled_dot_product_attention(given(0), given(1), given(2), options);
    output = batched ? output.squeeze(0) : output;
    auto result = torch::autograd::grad({output.square().sum()}, inputs);
    result.insert(result.begin(), output.detach());
    return result;
  }
};

/// The names of all nodes that lead to `x`.
std::set<std::string> nodes_of(const torch::Tensor& x) {
  std::set<std::string> names;
  std::vector<torch::autograd::Node*> open{x.grad_fn().get()};
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    names.insert(node->name());
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) {
        open.push_back(edge.function.get());
      }
    }
  }
  return names;
}

} // namespace

TEST_CASE("Shared heads without a batch are those of a batch of one") {
  torch::manual_seed(1);
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kFused, Kernel::kReference);
  const int64_t T = GENERATE(1, 3, 40);
  CAPTURE(kernel, T);
  constexpr int64_t kKeys = 50;
  Leaves leaves(T, kKeys);
  const auto mask = torch::rand({kHeads, T, kKeys}) < 0.3;
  const auto bias = torch::randn({T, kKeys});
  for (const auto& options :
       {Options(),
        Options().causal(true).window(9),
        Options().mask(mask).bias(bias),
        Options().softcap(2)}) {
    auto with_kernel = options;
    with_kernel.enable_gqa(true).kernel(kernel);
    const auto alone = leaves.attend(with_kernel, false);
    const auto batched = leaves.attend(with_kernel, true);
    CHECK(alone[0].sizes() == torch::IntArrayRef{kHeads, T, 5});
    for (size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(i);
      CHECK_THAT(alone[i], IsEqualTo(batched[i]));
    }
  }
}

TEST_CASE("Shared heads without a batch return weights without one") {
  torch::manual_seed(2);
  const Leaves leaves(7, 9);
  const auto [output, weights] = F::scaled_dot_product_attention_with_weights(
      leaves.inputs[0],
      leaves.inputs[1],
      leaves.inputs[2],
      Options().enable_gqa(true));
  CHECK(output.sizes() == torch::IntArrayRef{kHeads, 7, 5});
  CHECK(weights.sizes() == torch::IntArrayRef{kHeads, 7, 9});
}

TEST_CASE("Shared heads without a batch are read where they are") {
  torch::manual_seed(3);
  const Leaves leaves(7, 9);
  const auto output = F::scaled_dot_product_attention(
      leaves.inputs[0],
      leaves.inputs[1],
      leaves.inputs[2],
      Options().enable_gqa(true));
  // Views, and no copy for each query head.
  CHECK(
      nodes_of(output) ==
      std::set<std::string>{
          "SqueezeBackward1",
          "TiledAttentionBackward",
          "UnsqueezeBackward0",
          "torch::autograd::AccumulateGrad"});
}

TEST_CASE("Lengths of shared heads without a batch are of query heads") {
  torch::manual_seed(4);
  Leaves leaves(4, 9);
  const auto lengths = torch::tensor({9, 3, 1, 5, 0, 7});
  const auto options = Options().enable_gqa(true).key_lengths(lengths);
  const auto result = leaves.attend(options, false);
  const auto hidden = torch::arange(9) >= lengths.view({kHeads, 1, 1});
  const auto expected =
      leaves.attend(Options().enable_gqa(true).mask(hidden), false);
  for (size_t i = 0; i < result.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(result[i], IsCloseTo(expected[i]));
  }
}

} // namespace shared_heads_test
