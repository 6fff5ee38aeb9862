// Calls of LibTorch's fused kernels on a device: those at which they err, their
// gradients, dropout and autocast.

#include <device/computed.h>

#include <support/close.h>
#include <support/test.h>

#include <ATen/autocast_mode.h>

#include <string>
#include <vector>

namespace device_calls_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = AttentionOptions;

namespace {

/// Returns the gradients of the squared output's sum, then those of the sum of
/// their squares; float32 on the CPU.
std::vector<torch::Tensor> gradients_twice(
    const torch::Tensor& output,
    const std::vector<torch::Tensor>& leaves) {
  auto results = torch::autograd::grad(
      {output.square().sum()},
      leaves,
      {},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  auto sum = torch::zeros({}, output.options().dtype(torch::kFloat));
  for (const auto& x : results) {
    sum = sum + x.to(torch::kFloat).square().sum();
  }
  const auto second = torch::autograd::grad({sum}, leaves);
  results.insert(results.end(), second.begin(), second.end());
  for (auto& x : results) {
    x = x.detach().cpu().to(torch::kFloat);
  }
  return results;
}

} // namespace

TEST_CASE("Calls at which LibTorch's kernels err give the definition") {
  torch::manual_seed(11);
  const auto sinks = torch::randn({4});
  const auto padding = torch::tensor({true, false, false, true, false});
  const auto starts = [](std::vector<int64_t> x) { return torch::tensor(x); };
  struct Case {
    std::string name;
    Shape shape;
    Options options;
  };
  const std::vector<Case> cases{
      {"more queries than twice the keys", {2, 4, 2, 12, 5, 8}, Options()},
      {"and padding", {2, 4, 2, 12, 5, 8}, Options().mask(padding)},
      {"and lengths",
       {2, 4, 2, 12, 5, 8},
       Options().key_lengths(starts({0, 3}))},
      {"causal before the first key",
       {2, 4, 2, 9, 5, 8},
       Options().causal(true)},
      {"a window before the first key",
       {2, 4, 2, 9, 5, 8},
       Options().window(3).window_after(5)},
      {"a window after a cache",
       {2, 4, 2, 4, 7, 8},
       Options().causal(true).window(3)},
      {"slopes and a window in blocks",
       {1, 4, 2, 300, 300, 8},
       Options().causal(true).window(40).alibi_slopes(F::alibi_slopes(4))},
      {"one head of keys",
       {2, 4, 1, 33, 40, 8},
       Options().mask(torch::rand({33, 40}).gt(0.5))},
      {"packed, without keys",
       {1, 4, 2, 9, 6, 8},
       Options()
           .cu_seqlens(starts({0, 4, 6, 9}))
           .cu_seqlens_k(starts({0, 3, 3, 6}))
           .sinks(sinks)},
      {"packed, causal, with fewer keys",
       {1, 4, 2, 9, 6, 8},
       Options()
           .causal(true)
           .cu_seqlens(starts({0, 4, 6, 9}))
           .cu_seqlens_k(starts({0, 3, 3, 6}))
           .sinks(sinks)},
      {"packed, one query in all",
       {1, 4, 2, 1, 7, 8},
       Options().cu_seqlens(starts({0, 1})).cu_seqlens_k(starts({0, 7}))},
      {"packed, one query or none",
       {1, 4, 2, 2, 7, 8},
       Options()
           .cu_seqlens(starts({0, 1, 1, 2}))
           .cu_seqlens_k(starts({0, 3, 5, 7}))},
      {"a bias with keys outside",
       {2, 4, 2, 1, 16, 8},
       Options().bias(torch::randn({1, 16, 4}).permute({2, 0, 1}))}};
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto tolerance = backend == kFlash ? 6e-2 : 5e-5;
    for (const auto& each : cases) {
      for (const bool with_gradients : {false, true}) {
        CAPTURE(each.name, dtype, with_gradients);
        const auto inputs = inputs_of(each.shape);
        const auto computed =
            compute(inputs, dtype, each.options, with_gradients);
        const auto expected = expected_of(inputs, each.options, with_gradients);
        check_all_close(
            computed.results, expected, Tolerance(tolerance, tolerance));
      }
    }
  }
}

TEST_CASE("Gradients of LibTorch's kernels are differentiated again") {
  torch::manual_seed(7);
  const Chosen chosen(kEfficient);
  const auto inputs = inputs_of({2, 4, 2, 9, 9, 8});
  const auto sinks = torch::randn({4});
  const auto second = [&](torch::Device to, double dropout) {
    std::vector<torch::Tensor> leaves;
    for (const auto& x : inputs) {
      leaves.push_back(x.to(to).requires_grad_());
    }
    leaves.push_back(sinks.to(to).requires_grad_());
    const auto output = F::scaled_dot_product_attention(
        leaves[0],
        leaves[1],
        leaves[2],
        Options()
            .causal(true)
            .window(4)
            .enable_gqa(true)
            .sinks(leaves[3])
            .dropout(dropout));
    return gradients_twice(output, leaves);
  };
  check_all_close(
      second(device(), 0), second(torch::kCPU, 0), Tolerance(1e-4, 1e-4));
  CHECK_THROWS_WITH(second(device(), 0.5), ContainsText("expected no dropout"));
}

TEST_CASE("Gradients of ALiBi in half precision are differentiated again") {
  torch::manual_seed(12);
  const Chosen chosen(kFlash);
  const auto inputs = inputs_of({1, 4, 2, 40, 700, 16});
  const auto slopes = F::alibi_slopes(4);
  const auto second = [&](torch::Device to, torch::Dtype dtype) {
    std::vector<torch::Tensor> leaves;
    for (const auto& x : inputs) {
      leaves.push_back(
          x.to(torch::kBFloat16).to(dtype).to(to).requires_grad_());
    }
    const auto output = F::scaled_dot_product_attention(
        leaves[0],
        leaves[1],
        leaves[2],
        Options().causal(true).enable_gqa(true).alibi_slopes(slopes.to(to)));
    auto results = gradients_twice(output, leaves);
    for (auto& x : results) {
      x = x / x.abs().max();
    }
    return results;
  };
  check_all_close(
      second(device(), torch::kBFloat16),
      second(torch::kCPU, torch::kDouble),
      Tolerance(3e-2, 3e-2));
}

TEST_CASE("A single head may have any stride on the device") {
  torch::manual_seed(13);
  const Chosen chosen(kEfficient);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto wide = torch::randn({1, 1, 1, 17}).to(dtype);
    const auto tall = torch::randn({1, 5, 16, 1}).to(dtype);
    const auto attend = [&](torch::Device to) {
      const auto query =
          wide.to(to).narrow(-1, 0, 16).detach().requires_grad_();
      // (1, 1, 5, 16), whose heads have the stride 1
      const auto value = tall.to(to).permute({0, 3, 1, 2});
      const auto output = F::scaled_dot_product_attention(
          query,
          value,
          value,
          Options().mask(
              torch::tensor({true, false, false, false, true}).to(to)));
      const auto gradient =
          torch::autograd::grad({output}, {query}, {torch::ones_like(output)});
      return std::vector<torch::Tensor>{
          output.detach().cpu(), gradient[0].cpu()};
    };
    check_all_close(
        attend(device()), attend(torch::kCPU), Tolerance(2e-2, 2e-2));
  }
}

TEST_CASE("An output on a device that was changed has no gradients") {
  const Chosen chosen(kEfficient);
  auto inputs = inputs_of({2, 4, 4, 9, 9, 8});
  for (auto& x : inputs) {
    x = x.to(device()).requires_grad_();
  }
  auto output = F::scaled_dot_product_attention(
      inputs[0], inputs[1], inputs[2], Options().causal(true).window(3));
  output += 1;
  CHECK_THROWS_WITH(output.sum().backward(), ContainsText("changed in place"));
}

TEST_CASE("Dropout of LibTorch's kernels keeps its mask for gradients") {
  torch::manual_seed(8);
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto options = torch::device(device()).dtype(dtype);
    // With equal scores and the identity as values, outputs are weights.
    const auto zeros = torch::zeros({1, 2, 32, 32}, options);
    const auto value = torch::eye(32)
                           .expand({1, 2, 32, 32})
                           .to(options)
                           .contiguous()
                           .requires_grad_();
    const auto output = F::scaled_dot_product_attention(
        zeros,
        zeros.clone(),
        value,
        Options().causal(true).window(20).dropout(0.5));
    const auto weights = output.detach().cpu().to(torch::kFloat);
    const auto kept = weights.gt(0).to(torch::kFloat).mean().item<double>();
    // Half of the weights that the window shows.
    const auto shown = torch::ones({32, 32}).tril().triu(-19);
    CHECK(kept > 0.4 * shown.mean().item<double>());
    CHECK(kept < 0.6 * shown.mean().item<double>());
    output.sum().backward();
    CHECK_THAT(
        value.grad().cpu().to(torch::kFloat),
        IsCloseTo(
            weights.sum(2).unsqueeze(-1).expand({1, 2, 32, 32}),
            Tolerance(2e-2, 2e-2)));
  }
}

TEST_CASE("Autocast on a device keeps its kernels") {
  torch::manual_seed(9);
  const Chosen chosen(kFlash);
  const Shape shape{1, 4, 2, 512, 512, 8};
  const auto inputs = inputs_of(shape);
  const auto options = Options().causal(true).window(100).enable_gqa(true);
  std::vector<torch::Tensor> moved;
  for (const auto& x : inputs) {
    moved.push_back(x.to(device()));
  }
  const auto type = device().type();
  at::autocast::set_autocast_enabled(type, true);
  at::autocast::set_autocast_dtype(type, torch::kBFloat16);
  const DeviceLog log;
  const auto output =
      F::scaled_dot_product_attention(moved[0], moved[1], moved[2], options);
  at::autocast::set_autocast_enabled(type, false);
  CHECK(log.count("aten::_flash_attention_forward") == 1);
  CHECK(log.largest() < shape.T * shape.S);
  CHECK(output.scalar_type() == torch::kBFloat16);
  CHECK_THAT(
      output.cpu().to(torch::kFloat),
      IsCloseTo(expected_of(inputs, options, false)[0], Tolerance(4e-2, 4e-2)));
}

} // namespace device_calls_test
