// LibTorch's attention, replaced by ours, while memory runs out.

#include <memory/computation.h>

#include <torch_attention/operators/replace_sdpa.h>

#include <ATen/ops/scaled_dot_product_attention.h>

namespace replace_sdpa_memory_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Replaces LibTorch's attention for its lifetime.
struct Replaced {
  Replaced() {
    replace_sdpa();
  }
  ~Replaced() {
    restore_sdpa();
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;
};

} // namespace

TEST_CASE("Attention that is replaced throws without memory") {
  torch::manual_seed(1);
  const Replaced replaced;
  const auto calls = sdpa_calls().ours;
  std::vector<torch::Tensor> inputs;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(torch::randn({2, 2, 9, 4}));
  }
  const auto attend = [&] {
    return at::scaled_dot_product_attention(
        inputs[0], inputs[1], inputs[2], {}, 0.0, /*is_causal=*/true);
  };
  SECTION("without gradients") {
    const torch::NoGradGuard no_grad;
    check_computation([&] { return Tensors{attend()}; });
  }
  SECTION("with gradients") {
    for (auto& x : inputs) {
      x.requires_grad_();
    }
    check_computation([&] {
      const auto output = attend();
      auto results = torch::autograd::grad({output.sum()}, inputs);
      results.push_back(output.detach());
      return results;
    });
  }
  CHECK(sdpa_calls().ours > calls);
}

} // namespace replace_sdpa_memory_test
