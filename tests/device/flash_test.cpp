// FlashAttention of the device, against the reference in float64.

#include <device/expected.h>
#include <device/memory.h>

#include <random/random.h>
#include <support/close.h>
#include <support/test.h>

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <limits>

namespace flash_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using random::Random;
using Tensors = std::vector<torch::Tensor>;
using Options = functional::ScaledDotProductAttentionFuncOptions;

namespace {

struct Windows {
  bool causal = false;
  std::optional<int64_t> left;
  std::optional<int64_t> right;

  torch::Tensor hidden(int64_t T, int64_t S) const {
    return hidden_where(T, S, [&](int64_t t, int64_t s) {
      const auto position = t + S - T;
      return (causal && s > position) || (left && s < position - *left) ||
          (right && !causal && s > position + *right);
    });
  }
};

Windows draw_windows(Random& random, int64_t S) {
  Windows x;
  x.causal = random.once_in(2);
  if (random.once_in(2)) {
    x.left = random.integer(0, S);
  }
  if (!x.causal && random.once_in(2)) {
    x.right = random.integer(0, S);
  }
  return x;
}

torch::Tensor on_device(torch::IntArrayRef sizes, torch::ScalarType dtype) {
  return torch::randn(sizes).to(dtype).to(device());
}

Tolerance tolerance_of(torch::ScalarType dtype) {
  const auto bound = dtype == torch::kHalf ? 5e-3 : 4e-2;
  return {bound, bound};
}

torch::Tensor flash(
    const Tensors& x,
    const Windows& windows,
    std::optional<double> scale = std::nullopt) {
  return std::get<0>(at::_flash_attention_forward(
      x[0],
      x[1],
      x[2],
      {},
      {},
      x[0].size(1),
      x[1].size(1),
      /*dropout_p=*/0.0,
      windows.causal,
      /*return_debug_mask=*/false,
      scale,
      windows.left,
      windows.right));
}

Tensors leaves_of(const Tensors& x) {
  Tensors leaves;
  for (const auto& each : x) {
    leaves.push_back(each.detach().requires_grad_());
  }
  return leaves;
}

void check_drawn(Random& random) {
  const auto dtype = random.one_of({torch::kHalf, torch::kBFloat16});
  const auto B = random.integer(1, 3);
  const auto G = random.integer(1, 2);
  const auto H = G * random.integer(1, 3);
  const auto T = random.integer(1, 9);
  const auto S = random.integer(1, 9);
  const auto D = random.one_of<int64_t>({8, 16});
  const auto windows = draw_windows(random, S);
  CAPTURE(dtype, B, G, H, T, S, windows.causal, windows.left.value_or(-1));
  const auto leaves = leaves_of(
      {on_device({B, T, H, D}, dtype),
       on_device({B, S, G, D}, dtype),
       on_device({B, S, G, D}, dtype)});
  const auto grad_output = torch::randn({B, T, H, D}).to(dtype);
  const auto actual =
      with_gradients(flash(leaves, windows, 0.3), leaves, grad_output);
  const auto exact = double_leaves(leaves);
  const auto output = reference_in_double(
      {exact[0].transpose(1, 2),
       exact[1].transpose(1, 2),
       exact[2].transpose(1, 2)},
      Options().mask(windows.hidden(T, S)).scale(0.3));
  const auto expected =
      with_gradients(output.transpose(1, 2), exact, grad_output);
  check_all_close(actual, expected, tolerance_of(dtype));
}

torch::Tensor counts(const std::vector<int64_t>& numbers) {
  return torch::tensor(numbers, torch::kInt).to(device());
}

} // namespace

TEST_CASE(
    "Flash attention of drawn sizes and windows, with gradients",
    "[emulated]") {
  for (uint64_t i = 0; i < 60; ++i) {
    torch::manual_seed(i);
    Random random(i);
    check_drawn(random);
  }
}

TEST_CASE("Flash attention of packed sequences, with gradients", "[emulated]") {
  torch::manual_seed(1);
  const std::vector<int64_t> queries{0, 3, 4, 4, 9};
  const std::vector<int64_t> keys{0, 5, 6, 9, 11};
  const auto leaves = leaves_of(
      {on_device({9, 4, 8}, torch::kHalf),
       on_device({11, 2, 8}, torch::kHalf),
       on_device({11, 2, 8}, torch::kHalf)});
  const auto grad_output = torch::randn({9, 4, 8}).to(torch::kHalf);
  const auto output = std::get<0>(at::_flash_attention_forward(
      leaves[0],
      leaves[1],
      leaves[2],
      counts(queries),
      counts(keys),
      /*max_q=*/5,
      /*max_k=*/5,
      0.0,
      /*is_causal=*/true,
      false));
  const auto actual = with_gradients(output, leaves, grad_output);
  const auto exact = double_leaves(leaves);
  const auto rows = [](const torch::Tensor& x) {
    return x.transpose(0, 1).unsqueeze(0);
  };
  const auto packed = reference_in_double(
      {rows(exact[0]), rows(exact[1]), rows(exact[2])},
      Options()
          .causal(true)
          .cu_seqlens(torch::tensor(queries))
          .cu_seqlens_k(torch::tensor(keys)));
  const auto expected =
      with_gradients(packed[0].transpose(0, 1), exact, grad_output);
  check_all_close(actual, expected, tolerance_of(torch::kHalf));
}

TEST_CASE(
    "Flash attention reads the rows of a cache that are used, only",
    "[emulated]") {
  torch::manual_seed(2);
  const int64_t B = 2;
  const int64_t G = 2;
  const int64_t capacity = 6;
  const int64_t D = 8;
  const std::vector<int64_t> used{4, 2};
  auto cache = torch::randn({B, G, capacity, D});
  for (int64_t b = 0; b < B; ++b) {
    cache.select(0, b)
        .narrow(1, used[static_cast<size_t>(b)], capacity - used[b])
        .fill_(std::numeric_limits<float>::quiet_NaN());
  }
  const auto keys = cache.to(torch::kHalf).to(device());
  // Row r is token r of the first head; the last rows of it are another's.
  const auto view = keys.as_strided(
      {B * G * capacity - (G - 1) * capacity, G, D}, {D, capacity * D, 1});
  const auto query = on_device({B, 4, D}, torch::kHalf);
  const auto output = std::get<0>(at::_flash_attention_forward(
      query,
      view,
      view,
      counts({0, 1, 2}),
      counts({0, G * capacity, 2 * G * capacity}),
      /*max_q=*/1,
      /*max_k=*/4,
      0.0,
      /*is_causal=*/false,
      false,
      /*scale=*/std::nullopt,
      std::nullopt,
      std::nullopt,
      counts(used)));
  for (int64_t b = 0; b < B; ++b) {
    const auto rows = keys[b]
                          .narrow(1, 0, used[static_cast<size_t>(b)])
                          .unsqueeze(0)
                          .cpu()
                          .to(torch::kDouble);
    const auto expected = reference_in_double(
        {query[b].view({1, 4, 1, D}).cpu().to(torch::kDouble), rows, rows}, {});
    CHECK_THAT(
        output[b].cpu().to(torch::kDouble),
        IsCloseTo(expected.view({4, D}), tolerance_of(torch::kHalf)));
  }
}

TEST_CASE("Rows of flash attention that see no key are zero", "[emulated]") {
  const auto x = on_device({1, 3, 1, 8}, torch::kHalf);
  const auto two = x.slice(1, 0, 2);
  const auto found = at::_flash_attention_forward(
      x, two, two, {}, {}, 3, 2, 0.0, /*is_causal=*/true, false);
  CHECK_THAT(
      std::get<0>(found)[0][0].cpu(),
      IsEqualTo(torch::zeros({1, 8}, torch::kHalf)));
  const auto logsumexp = std::get<1>(found).cpu();
  CHECK_THAT(logsumexp, HasShape({1, 1, 3}));
  CHECK(
      logsumexp[0][0][0].item<float>() ==
      std::numeric_limits<float>::infinity());
  CHECK(logsumexp.slice(2, 1).isfinite().all().item<bool>());
}

TEST_CASE(
    "Gradients of flash attention follow the logsumexp that is given",
    "[emulated]") {
  torch::manual_seed(3);
  const auto x = on_device({1, 2, 1, 8}, torch::kHalf);
  const auto found = at::_flash_attention_forward(
      x, x, x, {}, {}, 2, 2, 0.0, /*is_causal=*/false, false);
  const auto gradients = [&](const torch::Tensor& logsumexp) {
    return at::_flash_attention_backward(
        torch::ones_like(x),
        x,
        x,
        x,
        std::get<0>(found),
        logsumexp,
        {},
        {},
        2,
        2,
        0.0,
        false,
        std::get<2>(found),
        std::get<3>(found));
  };
  const auto full = std::get<2>(gradients(std::get<1>(found)));
  const auto less = std::get<2>(gradients(std::get<1>(found) + 1));
  CHECK_THAT(
      less.cpu().to(torch::kFloat),
      IsCloseTo(full.cpu().to(torch::kFloat) * std::exp(-1.0F), {1e-2, 1e-3}));
}

TEST_CASE(
    "Dropout of flash attention is the same in both directions",
    "[emulated]") {
  torch::manual_seed(4);
  const auto leaves = leaves_of(
      {on_device({2, 5, 2, 8}, torch::kHalf),
       on_device({2, 6, 2, 8}, torch::kHalf),
       on_device({2, 6, 2, 8}, torch::kHalf)});
  const auto attend = [&] {
    return std::get<0>(at::_flash_attention_forward(
        leaves[0], leaves[1], leaves[2], {}, {}, 5, 6, 0.5, false, false));
  };
  const auto grad_output = torch::randn({2, 5, 2, 8});
  const auto found = with_gradients(attend(), leaves, grad_output);
  // The output is linear in the values.
  const auto value = leaves[2].detach().cpu().to(torch::kDouble);
  CHECK_THAT(
      (found[0] * grad_output.to(torch::kHalf)).sum(),
      IsCloseTo((found[3] * value).sum(), {1e-2, 1e-1}));
  CHECK_FALSE(attend().cpu().equal(attend().cpu()));
  torch::manual_seed(5);
  const auto first = attend().cpu();
  torch::manual_seed(5);
  CHECK_THAT(attend().cpu(), IsEqualTo(first));
}

TEST_CASE("Flash attention refuses what CUDA's does", "[emulated]") {
  const auto x = on_device({2, 3, 4, 8}, torch::kHalf);
  const auto call = [](const Tensors& t) { return flash(t, {}); };
  CHECK_NOTHROW(call({x, x, x}));
  const auto refuses = [&](const Tensors& t) {
    THROWS_WITH(call(t), "the device expects");
  };
  const auto wide = x.to(torch::kFloat);
  refuses({wide, wide, wide});
  refuses({x, x, x.to(torch::kBFloat16)});
  refuses({x, x.cpu(), x});
  refuses({x.transpose(2, 3), x.transpose(2, 3), x.transpose(2, 3)});
  refuses({x, x.slice(2, 0, 3), x.slice(2, 0, 3)});
  refuses({x, x, x.slice(1, 0, 2)});
  const auto odd = on_device({2, 3, 4, 12}, torch::kHalf);
  refuses({odd, odd, odd});
  const auto large = on_device({1, 1, 1, 264}, torch::kHalf);
  refuses({large, large, large});
}

TEST_CASE(
    "Flash attention refuses packed sequences that CUDA's does",
    "[emulated]") {
  using Optional = std::optional<torch::Tensor>;
  const auto x = on_device({2, 3, 4, 8}, torch::kHalf);
  const auto starts = counts({0, 3});
  const Optional none;
  const auto call = [](const torch::Tensor& rows,
                       const Optional& query_starts,
                       const Optional& key_starts,
                       int64_t most,
                       const Optional& used,
                       const Optional& slopes) {
    return at::_flash_attention_forward(
        rows,
        rows,
        rows,
        query_starts,
        key_starts,
        most,
        most,
        0.0,
        false,
        false,
        std::nullopt,
        std::nullopt,
        std::nullopt,
        used,
        slopes);
  };
  const auto packed = [&](const torch::Tensor& query_starts,
                          const torch::Tensor& key_starts,
                          int64_t most,
                          const Optional& used) {
    return call(x[0], query_starts, key_starts, most, used, none);
  };
  CHECK_NOTHROW(packed(starts, starts, 3, none));
  THROWS_WITH(packed(starts.cpu(), starts, 3, none), "cum_seq_q");
  THROWS_WITH(packed(starts, starts.to(torch::kLong), 3, none), "cum_seq_k");
  THROWS_WITH(packed(starts, counts({0, 1, 3}), 3, none), "cum_seq_k");
  THROWS_WITH(packed(starts, starts, 2, none), "max_q");
  THROWS_WITH(packed(starts, starts, 3, counts({3, 3})), "seqused_k");
  THROWS_WITH(call(x, none, none, 3, counts({3, 3}), none), "seqused_k");
  const auto slopes = torch::ones({4}).to(device());
  THROWS_WITH(call(x, none, none, 3, none, slopes), "alibi_slopes");
}

} // namespace flash_test
