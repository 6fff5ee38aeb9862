// A CUDA device gives the results of the CPU, where there is one.

#include <support/close.h>
#include <support/decode.h>
#include <support/test.h>

#include <torch/cuda.h>

#include <vector>

namespace cuda_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

struct Shape {
  int64_t T;
  int64_t S;
  int64_t D;
};

struct Kind {
  std::string name;
  Options options;
};

std::vector<Kind> every_kind() {
  return {
      {"all keys", Options()},
      {"causal", Options().causal(true)},
      {"causal, scaled", Options().causal(true).scale(0.3)},
      {"window", Options().causal(true).window(5)},
      {"lengths",
       Options()
           .causal(true)
           .key_lengths(torch::tensor({30, 11}))
           .query_offsets(torch::tensor({3, 9}))},
      {"slopes", Options().causal(true).alibi_slopes(F::alibi_slopes(4))},
      {"softcap", Options().causal(true).softcap(2)},
      {"window to both sides", Options().window(5).window_after(3)},
      {"chunks", Options().causal(true).chunk(6)},
      {"sinks", Options().causal(true).sinks(F::alibi_slopes(4))},
  };
}

/// Output and gradients of query, key and value, float32 on the CPU.
std::vector<torch::Tensor> attend(
    const std::vector<torch::Tensor>& inputs,
    const torch::Tensor& grad_output,
    torch::Device device,
    torch::Dtype dtype,
    const Options& options) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.to(device, dtype).detach().requires_grad_());
  }
  auto with_groups = options;
  const auto output = F::scaled_dot_product_attention(
      leaves[0], leaves[1], leaves[2], with_groups.enable_gqa(true));
  auto results =
      torch::autograd::grad({output}, leaves, {grad_output.to(device, dtype)});
  results.push_back(output.detach());
  for (auto& x : results) {
    x = x.to(torch::kCPU, torch::kFloat);
  }
  return results;
}

} // namespace

TEST_CASE("CUDA devices compute what the CPU does") {
  if (!torch::cuda::is_available()) {
    return;
  }
  torch::manual_seed(1);
  const auto dtype = GENERATE(torch::kFloat, torch::kHalf, torch::kBFloat16);
  const auto shape = GENERATE(values<Shape>(
      {{30, 30, 16},
       {7, 30, 16},
       {1, 30, 64},
       {7, 30, 20},
       {30, 7, 16},
       {129, 1100, 16}}));
  const std::vector<torch::Tensor> inputs{
      torch::randn({2, 4, shape.T, shape.D}),
      torch::randn({2, 2, shape.S, shape.D}),
      torch::randn({2, 2, shape.S, shape.D})};
  const auto grad_output = torch::randn({2, 4, shape.T, shape.D});
  const auto tolerance = dtype == torch::kFloat ? 1e-4 : 4e-2;
  for (const auto& kind : every_kind()) {
    CAPTURE(dtype, shape.T, shape.S, shape.D, kind.name);
    const auto expected =
        attend(inputs, grad_output, torch::kCPU, torch::kFloat, kind.options);
    const auto actual =
        attend(inputs, grad_output, torch::kCUDA, dtype, kind.options);
    check_all_close(actual, expected, Tolerance(tolerance, tolerance));
  }
}

TEST_CASE("A block of causal queries forms no mask on a CUDA device") {
  if (!torch::cuda::is_available()) {
    return;
  }
  // A mask of so many entries, in one byte each, would be 16 GB.
  constexpr int64_t kTokens = int64_t{1} << 17;
  const auto dtype = GENERATE(torch::kHalf, torch::kFloat);
  const auto options = torch::device(torch::kCUDA).dtype(dtype);
  const auto query = torch::randn({1, 1, kTokens, 8}, options);
  const auto key = torch::randn({1, 1, kTokens + 1, 8}, options);
  const torch::NoGradGuard no_grad;
  const auto output = F::scaled_dot_product_attention(
      query, key, key, Options().causal(true).kernel(Kernel::kFused));
  // The first query sees two keys, the last all.
  const auto row = [&](int64_t t, int64_t keys) {
    return F::scaled_dot_product_attention(
        query.slice(2, t, t + 1), key.slice(2, 0, keys), key.slice(2, 0, keys));
  };
  const Tolerance close(1e-2, 1e-2);
  CHECK_THAT(output.slice(2, 0, 1), IsCloseTo(row(0, 2), close));
  CHECK_THAT(
      output.slice(2, kTokens - 1),
      IsCloseTo(row(kTokens - 1, kTokens + 1), close));
}

TEST_CASE("A module decodes on a CUDA device as it attends") {
  if (!torch::cuda::is_available()) {
    return;
  }
  torch::manual_seed(2);
  MultiHeadAttention attention(MultiHeadAttentionOptions(24, 32, 40, 4)
                                   .num_kv_heads(2)
                                   .rotary(RotaryOptions()));
  attention->eval();
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 20, 24});
  const auto expected = attention(x);
  attention->to(torch::kCUDA);
  const auto on_device = x.to(torch::kCUDA);
  auto cache = attention->make_cache(2);
  CHECK_THAT(
      decode_in_chunks(attention, cache, on_device, {9, 5, 1}),
      IsCloseTo(expected, {1e-4, 1e-4}));
}

} // namespace cuda_test
