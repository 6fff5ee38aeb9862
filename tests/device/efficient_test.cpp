// Memory-efficient attention of the device, against the reference in float64.

#include <device/expected.h>
#include <device/memory.h>

#include <random/random.h>
#include <support/close.h>
#include <support/test.h>

#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>

#include <limits>

namespace efficient_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using random::Random;
using Tensors = std::vector<torch::Tensor>;
using Options = functional::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kFromTopLeft = 1;
constexpr int64_t kFromBottomRight = 2;

auto forward(
    const Tensors& x,
    int64_t mask_type,
    std::optional<int64_t> window = std::nullopt,
    double dropout = 0.0) {
  return at::_efficient_attention_forward(
      x[0],
      x[1],
      x[2],
      x.size() > 3 ? std::optional(x[3]) : std::nullopt,
      {},
      {},
      std::nullopt,
      std::nullopt,
      dropout,
      mask_type,
      /*compute_log_sumexp=*/true,
      /*scale=*/0.3,
      /*seqlen_k=*/{},
      window);
}

torch::Tensor leaf(torch::IntArrayRef sizes, torch::ScalarType dtype) {
  return torch::randn(sizes).to(dtype).to(device()).requires_grad_();
}

/// Returns a leaf (B, H, T, S) whose rows are aligned.
torch::Tensor bias_leaf(
    const std::vector<int64_t>& sizes,
    torch::ScalarType dtype) {
  auto padded = sizes;
  padded.back() = (padded.back() + 7) / 8 * 8;
  return torch::randn(padded)
      .to(dtype)
      .to(device())
      .slice(-1, 0, sizes.back())
      .requires_grad_();
}

torch::Tensor expected_output(
    const Tensors& exact,
    const torch::Tensor& hidden) {
  auto options = Options().mask(hidden).scale(0.3);
  if (exact.size() > 3) {
    options.bias(exact[3]);
  }
  return reference_in_double(
             {exact[0].transpose(1, 2),
              exact[1].transpose(1, 2),
              exact[2].transpose(1, 2)},
             options)
      .transpose(1, 2);
}

/// Draws no row without a key, which is undefined on CUDA devices.
void check_drawn(Random& random) {
  const auto dtype = random.one_of({torch::kFloat, torch::kHalf});
  const auto B = random.integer(1, 3);
  const auto H = random.integer(1, 3);
  const auto T = random.integer(1, 9);
  const auto S = T + random.integer(0, 5);
  const auto D = random.one_of<int64_t>({4, 8, 16});
  const auto E = random.one_of<int64_t>({4, 8, 16});
  const auto mask_type = random.integer(0, 2);
  CAPTURE(dtype, B, H, T, S, D, E, mask_type);
  Tensors leaves{
      leaf({B, T, H, D}, dtype),
      leaf({B, S, H, D}, dtype),
      leaf({B, S, H, E}, dtype)};
  if (random.once_in(2)) {
    leaves.push_back(bias_leaf({B, H, T, S}, dtype));
  }
  const auto offset = mask_type == kFromBottomRight ? S - T : 0;
  const auto hidden = hidden_where(T, S, [&](int64_t t, int64_t s) {
    return mask_type != 0 && s > t + offset;
  });
  const auto grad_output = torch::randn({B, T, H, E}).to(dtype);
  const auto actual = with_gradients(
      std::get<0>(forward(leaves, mask_type)), leaves, grad_output);
  const auto exact = double_leaves(leaves);
  const auto expected =
      with_gradients(expected_output(exact, hidden), exact, grad_output);
  const auto bound = dtype == torch::kFloat ? 2e-5 : 5e-3;
  check_all_close(actual, expected, Tolerance(bound, bound));
}

} // namespace

TEST_CASE(
    "Efficient attention of drawn sizes and masks, with gradients",
    "[emulated]") {
  for (uint64_t i = 0; i < 60; ++i) {
    torch::manual_seed(i);
    Random random(i);
    check_drawn(random);
  }
}

TEST_CASE("Efficient attention in a window, with gradients", "[emulated]") {
  torch::manual_seed(1);
  const int64_t T = 7;
  const int64_t S = 7;
  const int64_t window = 2;
  const Tensors leaves{
      leaf({1, T, 2, 8}, torch::kFloat),
      leaf({1, S, 2, 8}, torch::kFloat),
      leaf({1, S, 2, 8}, torch::kFloat)};
  const auto grad_output = torch::randn({1, T, 2, 8});
  const torch::NoGradGuard no_grad;
  const auto found = forward(leaves, kFromBottomRight, window);
  const auto actual = at::_efficient_attention_backward(
      grad_output.to(device()),
      leaves[0],
      leaves[1],
      leaves[2],
      {},
      std::get<0>(found),
      {},
      {},
      T,
      S,
      std::get<1>(found),
      0.0,
      std::get<2>(found),
      std::get<3>(found),
      kFromBottomRight,
      /*bias_requires_grad=*/false,
      /*scale=*/0.3,
      /*num_splits_key=*/std::nullopt,
      window);
  const auto hidden = hidden_where(T, S, [&](int64_t t, int64_t s) {
    return s > t + S - T || s <= t + S - T - window;
  });
  const torch::AutoGradMode record(true);
  const auto exact = double_leaves(leaves);
  const auto expected =
      with_gradients(expected_output(exact, hidden), exact, grad_output);
  const Tolerance close(1e-5, 1e-5);
  const auto as_double = [](const torch::Tensor& x) {
    return x.cpu().to(torch::kDouble);
  };
  CHECK_THAT(as_double(std::get<0>(found)), IsCloseTo(expected[0], close));
  CHECK_THAT(as_double(std::get<0>(actual)), IsCloseTo(expected[1], close));
  CHECK_THAT(as_double(std::get<1>(actual)), IsCloseTo(expected[2], close));
  CHECK_THAT(as_double(std::get<2>(actual)), IsCloseTo(expected[3], close));
}

TEST_CASE(
    "Efficient attention of packed sequences, with gradients",
    "[emulated]") {
  torch::manual_seed(2);
  const std::vector<int64_t> starts{0, 3, 4, 9};
  const auto counts = torch::tensor(starts, torch::kInt).to(device());
  const Tensors leaves{
      leaf({1, 9, 2, 8}, torch::kFloat),
      leaf({1, 9, 2, 8}, torch::kFloat),
      leaf({1, 9, 2, 8}, torch::kFloat)};
  const auto grad_output = torch::randn({1, 9, 2, 8});
  const auto found = at::_efficient_attention_forward(
      leaves[0],
      leaves[1],
      leaves[2],
      {},
      counts,
      counts,
      5,
      5,
      0.0,
      kFromBottomRight,
      /*compute_log_sumexp=*/true);
  CHECK_THAT(std::get<1>(found), HasShape({3, 2, 32}));
  const auto actual = with_gradients(std::get<0>(found), leaves, grad_output);
  const auto exact = double_leaves(leaves);
  const auto output = reference_in_double(
      {exact[0].transpose(1, 2),
       exact[1].transpose(1, 2),
       exact[2].transpose(1, 2)},
      Options().causal(true).cu_seqlens(torch::tensor(starts)));
  const auto expected =
      with_gradients(output.transpose(1, 2), exact, grad_output);
  check_all_close(actual, expected, Tolerance(2e-5, 2e-5));
}

TEST_CASE(
    "Rows of efficient attention that see no key are not numbers",
    "[emulated]") {
  const auto x = leaf({1, 3, 1, 8}, torch::kFloat).detach();
  auto bias = torch::zeros({1, 1, 3, 8}).to(device()).slice(-1, 0, 3);
  bias.select(2, 1).fill_(-std::numeric_limits<float>::infinity());
  const auto found = forward({x, x, x, bias}, 0);
  const auto output = std::get<0>(found).cpu();
  const auto logsumexp = std::get<1>(found).cpu();
  CHECK(output[0][1].isnan().all().item<bool>());
  CHECK(output[0][0].isfinite().all().item<bool>());
  CHECK_THAT(logsumexp, HasShape({1, 1, 32}));
  CHECK(logsumexp[0][0][1].isnan().item<bool>());
  CHECK(logsumexp[0][0][2].isfinite().item<bool>());
  CHECK(logsumexp.slice(2, 3).isnan().all().item<bool>());
}

TEST_CASE(
    "Dropout of efficient attention is the same in both directions",
    "[emulated]") {
  torch::manual_seed(4);
  const Tensors leaves{
      leaf({2, 5, 2, 8}, torch::kFloat),
      leaf({2, 6, 2, 8}, torch::kFloat),
      leaf({2, 6, 2, 8}, torch::kFloat)};
  const auto attend = [&] {
    return std::get<0>(forward(leaves, 0, std::nullopt, 0.5));
  };
  const auto grad_output = torch::randn({2, 5, 2, 8});
  const auto found = with_gradients(attend(), leaves, grad_output);
  // The output is linear in the values.
  const auto value = leaves[2].detach().cpu().to(torch::kDouble);
  CHECK_THAT(
      (found[0] * grad_output).sum(),
      IsCloseTo((found[3] * value).sum(), {1e-5, 1e-5}));
  CHECK_FALSE(attend().cpu().equal(attend().cpu()));
}

TEST_CASE("Efficient attention refuses what CUDA's does", "[emulated]") {
  const torch::NoGradGuard no_grad;
  const auto x = leaf({2, 3, 4, 8}, torch::kFloat);
  CHECK_NOTHROW(forward({x, x, x}, 0));
  const auto refuses = [&](const Tensors& t, const std::string& why) {
    THROWS_WITH(forward(t, 0), why);
  };
  const auto wide = x.to(torch::kDouble);
  refuses({wide, wide, wide}, "of one dtype");
  refuses({x, x, x.to(torch::kHalf)}, "of one dtype");
  refuses({x, x.cpu(), x}, "key on the device");
  const auto fewer = x.slice(2, 0, 2);
  refuses({x, fewer, fewer}, "as many key as query heads");
  const auto turned = x.transpose(1, 3);
  refuses({turned, turned, turned}, "contiguous");
  const auto odd = leaf({2, 3, 4, 7}, torch::kFloat);
  refuses({odd, odd, odd}, "aligned");
  const auto bias = leaf({2, 4, 3, 4}, torch::kFloat).slice(-1, 0, 3);
  CHECK_NOTHROW(forward({x, x, x, bias}, 0));
  refuses({x, x, x, bias.to(torch::kHalf)}, "a bias of the query's dtype");
  refuses({x, x, x, bias.slice(1, 0, 1)}, "a bias of sizes");
  refuses({x, x, x, bias[0]}, "a bias of sizes");
  refuses({x, x, x, bias.clone(torch::MemoryFormat::Contiguous)}, "aligned");
  THROWS_WITH(forward({x, x, x}, 3), "custom_mask_type");
  THROWS_WITH(forward({x, x, x}, 0, 2), "window_size");
}

} // namespace efficient_test
