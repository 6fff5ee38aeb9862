// LibTorch's `scaled_dot_product_attention` on the device.

#include <device/computed.h>
#include <device/expected.h>

#include <support/close.h>
#include <support/test.h>

#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <limits>

namespace sdpa_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using Tensors = std::vector<torch::Tensor>;
using Options = functional::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr auto kMath = at::SDPBackend::math;

torch::Tensor leaf(torch::IntArrayRef sizes, torch::ScalarType dtype) {
  return torch::randn(sizes).to(dtype).to(device()).requires_grad_();
}

Tensors inputs(
    torch::ScalarType dtype,
    int64_t T,
    int64_t S,
    int64_t D,
    int64_t G = 4) {
  return {
      leaf({2, 4, T, D}, dtype),
      leaf({2, G, S, D}, dtype),
      leaf({2, G, S, D}, dtype)};
}

void check_close(
    const torch::Tensor& output,
    const Tensors& leaves,
    const Options& options) {
  const auto grad_output = torch::randn(output.sizes());
  const auto actual = with_gradients(output, leaves, grad_output);
  const auto exact = double_leaves(leaves);
  const auto expected = with_gradients(
      reference_in_double(exact, options),
      exact,
      grad_output.to(leaves[0].scalar_type()));
  const auto bound = leaves[0].scalar_type() == torch::kFloat ? 2e-5 : 5e-3;
  check_all_close(actual, expected, Tolerance(bound, bound));
}

constexpr const char* kFlashName = "aten::_scaled_dot_product_flash_attention";
constexpr const char* kEfficientName =
    "aten::_scaled_dot_product_efficient_attention";

} // namespace

TEST_CASE(
    "Flash attention serves half precision without a mask",
    "[emulated]") {
  torch::manual_seed(1);
  const DeviceLog log;
  // Sizes that are no multiple of 8 are padded.
  for (const int64_t D : {8, 5}) {
    const auto x = inputs(torch::kHalf, 5, 5, D);
    check_close(
        at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true),
        x,
        Options().causal(true));
  }
  const auto x = inputs(torch::kHalf, 5, 7, 8, 2);
  check_close(
      at::scaled_dot_product_attention(
          x[0], x[1], x[2], {}, 0.0, false, std::nullopt, /*enable_gqa=*/true),
      x,
      Options());
  CHECK(log.count(kFlashName) == 3);
  CHECK(log.count(std::string(kFlashName) + "_backward") == 3);
  CHECK(log.count(kEfficientName) == 0);
}

TEST_CASE("Efficient attention serves masks and float32", "[emulated]") {
  torch::manual_seed(2);
  const DeviceLog log;
  const auto hidden = torch::rand({5, 7}) < 0.3;
  const auto x = inputs(torch::kFloat, 5, 7, 8);
  check_close(
      at::scaled_dot_product_attention(
          x[0], x[1], x[2], hidden.logical_not().to(device())),
      x,
      Options().mask(hidden));
  const auto bias = torch::randn({2, 1, 5, 7});
  check_close(
      at::scaled_dot_product_attention(x[0], x[1], x[2], bias.to(device())),
      x,
      Options().bias(bias));
  const auto y = inputs(torch::kHalf, 5, 7, 8);
  check_close(
      at::scaled_dot_product_attention(
          y[0], y[1], y[2], hidden.logical_not().to(device())),
      y,
      Options().mask(hidden));
  CHECK(log.count(kEfficientName) == 3);
  CHECK(log.count(std::string(kEfficientName) + "_backward") == 3);
  CHECK(log.count(kFlashName) == 0);
}

TEST_CASE(
    "The mask of efficient attention begins at the first key",
    "[emulated]") {
  torch::manual_seed(3);
  const auto x = inputs(torch::kFloat, 5, 7, 8);
  const auto hidden =
      hidden_where(5, 7, [](int64_t t, int64_t s) { return s > t; });
  check_close(
      at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true),
      x,
      Options().mask(hidden));
}

TEST_CASE("What kernels do not compute is left to others", "[emulated]") {
  const auto choice = [](const Tensors& x,
                         const std::optional<torch::Tensor>& mask = {},
                         bool causal = false,
                         bool grouped = false) {
    return static_cast<at::SDPBackend>(at::_fused_sdp_choice(
        x[0], x[1], x[2], mask, 0.0, causal, std::nullopt, grouped));
  };
  const auto half = inputs(torch::kHalf, 5, 7, 8);
  const auto grouped = inputs(torch::kHalf, 5, 7, 8, 2);
  const auto wide = inputs(torch::kFloat, 5, 7, 8);
  const auto mask = torch::zeros({5, 7}, torch::kHalf).to(device());
  CHECK(choice(half) == kFlash);
  CHECK(choice(half, mask) == kEfficient);
  CHECK(choice(half, {}, /*causal=*/true) == kEfficient);
  CHECK(choice(grouped, {}, false, /*grouped=*/true) == kFlash);
  CHECK(choice(grouped, mask, false, /*grouped=*/true) == kMath);
  CHECK(choice(wide) == kEfficient);
  CHECK(choice(inputs(torch::kFloat, 5, 7, 6)) == kMath);
  CHECK(choice(inputs(torch::kDouble, 5, 7, 8)) == kMath);
  {
    const Chosen chosen(kEfficient);
    CHECK(choice(half) == kEfficient);
    CHECK(choice(grouped, {}, false, /*grouped=*/true) == kMath);
  }
  const Chosen chosen(kMath);
  CHECK(choice(half) == kMath);
  const DeviceLog log;
  check_close(
      at::scaled_dot_product_attention(wide[0], wide[1], wide[2]),
      wide,
      Options());
  CHECK(log.count(kEfficientName) == 0);
}

} // namespace sdpa_test
