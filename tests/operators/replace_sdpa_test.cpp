#include <operators/replaced_sdpa.h>
#include <support/close.h>
#include <support/test.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/jit.h>

#include <cstdlib>
#include <limits>

namespace replace_sdpa_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Query, key and value with T queries and S keys, whose gradients are wanted.
struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  explicit Inputs(
      int64_t T = 5,
      int64_t S = 7,
      torch::ScalarType dtype = torch::kFloat)
      : query(torch::randn({2, 3, T, 8}, dtype).requires_grad_()),
        key(torch::randn({2, 3, S, 8}, dtype).requires_grad_()),
        value(torch::randn({2, 3, S, 8}, dtype).requires_grad_()) {}

  torch::Tensor attend(
      const std::optional<torch::Tensor>& mask = {},
      double dropout = 0.0,
      bool causal = false,
      std::optional<double> scale = {}) const {
    return at::scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, scale);
  }

  std::tuple<torch::Tensor, torch::Tensor> flash(
      bool causal = false,
      const std::optional<torch::Tensor>& mask = {}) const {
    return at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, /*dropout_p=*/0.0, causal, mask);
  }

  /// The gradients of the output's product with fixed numbers.
  std::vector<torch::Tensor> gradients(const torch::Tensor& output) const {
    const auto factors =
        torch::arange(output.numel(), torch::kDouble).sin().view_as(output);
    return torch::autograd::grad(
        {output}, {query, key, value}, {factors.to(output.scalar_type())});
  }
};

void check_close(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected) {
  check_all_close(actual, expected, {1e-4, 1e-5});
}

/// The message of what `fn` throws.
template <typename Fn>
std::string message_of(const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

} // namespace

TEST_CASE("LibTorch's attention is ours from replace_sdpa to restore_sdpa") {
  const Inputs x;
  const SdpaReplaced before(false);
  auto calls = sdpa_calls();
  x.attend();
  CHECK(sdpa_calls().ours == calls.ours);
  CHECK(sdpa_calls().libtorch == calls.libtorch);

  replace_sdpa();
  replace_sdpa();
  CHECK(is_sdpa_replaced());
  x.attend();
  CHECK(sdpa_calls().ours == calls.ours + 1);

  restore_sdpa();
  CHECK_FALSE(is_sdpa_replaced());
  x.attend();
  CHECK(sdpa_calls().ours == calls.ours + 1);
}

TEST_CASE("The environment decides what a process begins with") {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  const auto* value = std::getenv("TORCH_ATTENTION_REPLACE_SDPA");
  const bool asked = value != nullptr && std::string(value) == "1";
  CHECK(is_sdpa_replaced() == asked);
  const auto calls = sdpa_calls();
  Inputs().attend();
  CHECK(sdpa_calls().ours - calls.ours == (asked ? 1 : 0));
}

TEST_CASE("LibTorch's flash operator has our output, logsumexp and gradients") {
  torch::manual_seed(1);
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto causal = GENERATE(false, true);
  const auto masked = GENERATE(false, true);
  CAPTURE(dtype, causal, masked);
  const Inputs x(5, 7, dtype);
  std::optional<torch::Tensor> mask;
  if (masked) {
    mask = torch::randn({5, 7}, dtype);
    mask->select(0, 2).fill_(-kInfinity);
  }
  const auto [expected, expected_sums] = x.flash(causal, mask);
  const auto expected_gradients = x.gradients(expected);
  torch::Tensor output;
  torch::Tensor sums;
  std::vector<torch::Tensor> gradients;
  const auto calls = calls_of([&] {
    std::tie(output, sums) = x.flash(causal, mask);
    gradients = x.gradients(output);
  });
  CHECK(calls.ours == 2);
  CHECK(calls.libtorch == 0);
  const bool half = dtype == torch::kBFloat16 || dtype == torch::kHalf;
  const Tolerance tolerance =
      half ? Tolerance(2e-2, 2e-2) : Tolerance(1e-4, 1e-5);
  CHECK_THAT(output, IsCloseTo(expected, tolerance));
  CHECK_THAT(sums, IsCloseTo(expected_sums, {1e-4, half ? 1e-3 : 1e-5}));
  CHECK(output.strides() == expected.strides());
  CHECK(sums.strides() == expected_sums.strides());
  for (size_t i = 0; i < gradients.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(gradients[i], IsCloseTo(expected_gradients[i], tolerance));
    CHECK(gradients[i].strides() == expected_gradients[i].strides());
  }
}

TEST_CASE(
    "The backward pass of LibTorch's flash operator takes its own results") {
  torch::manual_seed(1);
  const Inputs x;
  const auto [output, sums] = x.flash(/*causal=*/true);
  const auto expected = torch::autograd::grad(
      {output}, {x.query}, {torch::ones_like(output)}, /*retain_graph=*/true);
  const auto calls = calls_of([&] {
    check_close(
        torch::autograd::grad({output}, {x.query}, {torch::ones_like(output)}),
        expected);
  });
  CHECK(calls.ours == 1);
}

TEST_CASE(
    "Gradients are right where a mask adds the lowest number to all keys") {
  // LibTorch's own gradients are wrong: its logsumexp does not depend on the
  // number of keys.
  torch::manual_seed(1);
  const Inputs x;
  auto mask = torch::zeros({5, 7});
  mask[1].fill_(std::numeric_limits<float>::lowest());
  const auto scores =
      x.query.matmul(x.key.transpose(-2, -1)) / std::sqrt(8.0) + mask;
  const auto expected = x.gradients(torch::softmax(scores, -1).matmul(x.value));
  const SdpaReplaced replaced;
  check_close(x.gradients(x.attend(mask)), expected);
  check_close(x.gradients(std::get<0>(x.flash(false, mask))), expected);
}

TEST_CASE("The output may be changed in place where LibTorch allows it") {
  torch::manual_seed(7);
  const auto query = torch::randn({2, 3, 20, 8}).requires_grad_();
  const auto key = torch::randn({2, 3, 30, 8}).requires_grad_();
  const auto value = torch::randn({2, 3, 30, 5}).requires_grad_();
  const auto x = torch::randn({2, 3, 20, 5}).requires_grad_();
  const auto run = [&] {
    auto y = at::scaled_dot_product_attention(query, key, value);
    y += x;
    return torch::autograd::grad({y.sin().sum()}, {query, key, value, x});
  };
  const auto expected = run();
  std::vector<torch::Tensor> actual;
  CHECK(calls_of([&] { actual = run(); }).ours == 1);
  check_all_close(actual, expected, {1e-4, 1e-5});
}

TEST_CASE("Tensors on the device meta are refused in the replaced attention") {
  const SdpaReplaced replaced;
  const auto x = torch::randn({2, 3, 8, 8});
  const auto mask = torch::zeros({8, 8}, torch::kMeta);
  THROWS_WITH(
      at::scaled_dot_product_attention(x, x, x, mask),
      "expected the attn_mask");
  THROWS_WITH(
      at::_scaled_dot_product_flash_attention_for_cpu(x, x.to(torch::kMeta), x),
      "expected the key on cpu");
  const auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(x, x, x);
  THROWS_WITH(
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          x, x, x, x, output, logsumexp, 0, false, mask),
      "expected the attn_mask on cpu");
}

TEST_CASE("Rows that are wholly masked are zero, and so are their gradients") {
  const Inputs x;
  const auto calls = calls_of([&] {
    const auto seen = torch::ones({5, 7}, torch::kBool);
    seen[1].fill_(false);
    const auto output = x.attend(seen);
    CHECK(output.select(2, 1).abs().max().item<double>() == 0);
    CHECK(output.select(2, 2).abs().max().item<double>() > 0);
    const auto gradients = x.gradients(output);
    CHECK(gradients[0].select(2, 1).abs().max().item<double>() == 0);
    CHECK(gradients[1].isfinite().all().item<bool>());
  });
  CHECK(calls.ours == 1);
}

TEST_CASE("Dropout keeps the mean and follows LibTorch's generator") {
  const SdpaReplaced replaced;
  const auto zeros = torch::zeros({2, 2, 300, 4});
  const auto ones = torch::ones({2, 2, 300, 1});
  const auto attend = [&] {
    torch::manual_seed(3);
    return at::scaled_dot_product_attention(zeros, zeros, ones, {}, 0.3);
  };
  const auto calls = calls_of([&] {
    const auto output = attend();
    // 360000 weights of variance 3/7 / 300^2 in each sum of 300.
    CHECK(output.mean().item<double>() == Approx(1).margin(0.005));
    CHECK(
        output.std().item<double>() ==
        Approx(std::sqrt(0.3 / 0.7 / 300)).epsilon(0.1));
    CHECK_THAT(attend(), IsEqualTo(output));
    CHECK_FALSE(at::scaled_dot_product_attention(zeros, zeros, ones, {}, 0.3)
                    .equal(output));
  });
  CHECK(calls.ours == 3);
}

TEST_CASE(
    "The gradient of a gradient is there where LibTorch's flash has none") {
  const Inputs x(4, 4, torch::kDouble);
  const auto dropout = GENERATE(0.0, 0.4);
  CAPTURE(dropout);
  const SdpaReplaced replaced;
  const auto attend = [&](const torch::Tensor& query) {
    torch::manual_seed(5);
    return at::scaled_dot_product_attention(query, x.key, x.value, {}, dropout);
  };
  const auto slope = [&](const torch::Tensor& query) {
    return torch::autograd::grad(
        {attend(query).pow(2).sum()},
        {query},
        {},
        {},
        /*create_graph=*/true)[0];
  };
  const auto direction = torch::randn_like(x.query);
  const auto second =
      torch::autograd::grad({(slope(x.query) * direction).sum()}, {x.query})[0];
  constexpr double kStep = 1e-5;
  const auto at_step = [&](double step) {
    return slope((x.query.detach() + step * direction).requires_grad_())
        .detach();
  };
  const auto expected = (at_step(kStep) - at_step(-kStep)) / (2 * kStep);
  CHECK_THAT(second, IsCloseTo(expected, {1e-5, 1e-7}));
}

TEST_CASE("Wrong arguments give LibTorch's own messages") {
  const Inputs x;
  const auto x_double = Inputs(5, 7, torch::kDouble);
  const auto mask = torch::zeros({5, 7});
  const std::vector<std::function<void()>> wrong{
      [&] { x.attend({}, 1.5); },
      [&] { x.attend({}, -0.5); },
      [&] {
        x.attend(torch::zeros({5, 6}));
      },
      [&] { x.attend(mask.to(torch::kDouble)); },
      [&] { x.attend(mask.to(torch::kBool), 0.1, /*causal=*/true); },
      [&] { at::scaled_dot_product_attention(x.query, x_double.key, x.value); },
      [&] { at::scaled_dot_product_attention(x.query[0][0][0], x.key, x.key); },
      [&] {
        at::scaled_dot_product_attention(
            x.query, x.key.slice(-1, 0, 4), x.value);
      },
      [&] {
        at::scaled_dot_product_attention(
            x.query,
            x.key.slice(1, 0, 2),
            x.value.slice(1, 0, 2),
            {},
            0,
            false,
            {},
            /*enable_gqa=*/true);
      },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu(
            x.query, x.key, x.value, /*dropout_p=*/0.5);
      },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu(
            x.query[0], x.key[0], x.value[0]);
      }};
  for (size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    const SdpaReplaced before(false);
    const auto expected = message_of(wrong[i]);
    CHECK_FALSE(expected.empty());
    const SdpaReplaced replaced;
    CHECK(message_of(wrong[i]) == expected);
  }
}

// LibTorch's own kernel leaves the output unwritten if value has no memory.
TEST_CASE("Zeros without memory are zeros") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  const Inputs x(5, 7, dtype);
  const auto zeros = at::_efficientzerotensor(x.key.sizes(), x.key.options());
  REQUIRE(zeros._is_zerotensor());
  const SdpaReplaced replaced;
  const auto of_values =
      at::scaled_dot_product_attention(x.query, x.key, zeros);
  CHECK_THAT(of_values, IsEqualTo(torch::zeros_like(of_values)));
  CHECK_THAT(
      at::scaled_dot_product_attention(x.query, zeros, x.value),
      IsCloseTo(x.value.mean(-2, /*keepdim=*/true).expand_as(x.query)));
  const auto gradients = torch::autograd::grad(
      {x.attend()},
      {x.query, x.key, x.value},
      {at::_efficientzerotensor(x.query.sizes(), x.query.options())});
  for (const auto& gradient : gradients) {
    CHECK_THAT(gradient, IsEqualTo(torch::zeros_like(gradient)));
  }
}

TEST_CASE("What is unusual goes on to LibTorch") {
  const Inputs x;
  const auto is_passed_on = [&](const std::function<torch::Tensor()>& fn) {
    torch::Tensor output;
    const auto calls = calls_of([&] { output = fn(); });
    CHECK(calls.libtorch >= 1);
    CHECK(output.defined());
    return calls.libtorch >= 1 && calls.ours == 0;
  };
  SECTION("no queries, no keys") {
    CHECK(is_passed_on([] { return Inputs(0, 7).attend(); }));
    CHECK(is_passed_on([] { return Inputs(5, 0).attend(); }));
  }
  SECTION("the negative of what memory holds") {
    CHECK(is_passed_on([&] {
      return at::scaled_dot_product_attention(
          at::_neg_view(x.query), x.key, x.value, {}, 0.0, false, kInfinity);
    }));
  }
  SECTION("LibTorch's math, asked for by the user") {
    at::globalContext().setSDPUseFlash(false);
    CHECK(is_passed_on([&] { return x.attend(); }));
    at::globalContext().setSDPUseFlash(true);
  }
  SECTION("the reference as the kernel of the process") {
    set_default_kernel(Kernel::kReference);
    const auto calls = calls_of([&] { x.attend(); });
    set_default_kernel(Kernel::kAuto);
    CHECK(calls.ours == 0);
  }
}

TEST_CASE("Inference mode and autocast are LibTorch's") {
  const SdpaReplaced replaced;
  SECTION("inference mode") {
    const auto calls = calls_of([] {
      const c10::InferenceMode inference;
      const auto x = torch::randn({1, 2, 3, 4});
      CHECK(at::scaled_dot_product_attention(x, x, x).is_inference());
    });
    CHECK(calls.ours == 1);
  }
  SECTION("autocast") {
    const Inputs x;
    const auto calls = calls_of([&] {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto output = x.attend();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      CHECK(output.scalar_type() == torch::kBFloat16);
      CHECK(x.gradients(output)[0].scalar_type() == torch::kFloat);
    });
    CHECK(calls.ours == 1);
  }
}

TEST_CASE("A TorchScript model runs through it") {
  const auto unit = torch::jit::compile(R"(
    def attend(q, k, v):
        return torch.scaled_dot_product_attention(q, k, v, is_causal=True)
  )");
  const Inputs x;
  const auto attend = [&] {
    return unit->run_method("attend", x.query, x.key, x.value).toTensor();
  };
  const auto expected = attend();
  const auto calls = calls_of([&] {
    for (int i = 0; i < 3; ++i) {
      const auto output = attend();
      CHECK_THAT(output, IsCloseTo(expected));
      CHECK(x.gradients(output)[0].defined());
    }
  });
  CHECK(calls.ours == 3);
}

} // namespace replace_sdpa_test
