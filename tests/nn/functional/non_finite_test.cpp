// NaN reaches the queries that see it, and no others.

#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace non_finite_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kTokens = 20;

/// Returns the rows of x (..., T, D) that have NaN: bool (..., T).
torch::Tensor rows_with_nan(const torch::Tensor& x) {
  return x.isnan().any(-1);
}

struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  explicit Inputs(torch::ScalarType dtype)
      : query(torch::randn({2, 2, kTokens, 8}).to(dtype)),
        key(torch::randn_like(query)),
        value(torch::randn_like(query)) {}

  std::vector<torch::Tensor> attend(const Options& options) {
    std::vector<torch::Tensor> inputs;
    for (auto* x : {&query, &key, &value}) {
      inputs.push_back(x->detach().requires_grad_());
    }
    const auto output = F::scaled_dot_product_attention(
        inputs[0], inputs[1], inputs[2], options);
    auto result =
        torch::autograd::grad({output}, inputs, {torch::ones_like(output)});
    result.insert(result.begin(), output.detach());
    return result;
  }
};

} // namespace

TEST_CASE("NaN reaches the queries that see it") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const int what = GENERATE(0, 1, 2);
  CAPTURE(kernel, dtype, what);
  torch::manual_seed(1);
  Inputs inputs(dtype);
  auto& spoiled = what == 0 ? inputs.query
      : what == 1           ? inputs.key
                            : inputs.value;
  constexpr int64_t kWhere = 12;
  spoiled[1][0][kWhere][3] = kNaN;
  const auto output =
      rows_with_nan(inputs.attend(Options().causal(true).kernel(kernel))[0]);
  auto expected = torch::zeros_like(output);
  // The query itself, or those from the key on.
  expected[1][0].slice(0, kWhere, what == 0 ? kWhere + 1 : kTokens).fill_(true);
  CHECK_THAT(output, IsEqualTo(expected));
}

TEST_CASE("What is hidden reaches no output and no gradient") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const double bad = GENERATE(values({kNaN, kInfinity, -kInfinity}));
  const int how = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(kernel, dtype, bad, how);
  torch::manual_seed(2);
  Inputs inputs(dtype);
  // Keys 5 and 6 of all sequences, or some part of those from 14 on.
  auto options = Options().kernel(kernel);
  const auto hidden = torch::zeros({kTokens, kTokens}, torch::kBool);
  std::vector<int64_t> keys = {5, 6};
  hidden.slice(1, 5, 7).fill_(true);
  switch (how) {
    case 0:
      options.mask(hidden);
      break;
    case 1:
      options.mask(hidden[0]).causal(true);
      break;
    case 2:
      options.bias(
          torch::zeros({kTokens, kTokens}).masked_fill(hidden, -kInfinity));
      break;
    case 3:
      options.key_lengths(torch::tensor({int64_t{14}, int64_t{14}}));
      keys = {14, 19};
      break;
    default:
      options.causal(true).query_offsets(
          torch::tensor({int64_t{-6}, int64_t{-6}}));
      keys = {14, 19};
      break;
  }
  // The reference leaves what is not finite to the other one.
  const auto clean = inputs.attend(Options(options).kernel(Kernel::kFused));
  for (const auto key : keys) {
    inputs.key.select(2, key).fill_(bad);
    inputs.value.select(2, key).fill_(bad);
  }
  const auto spoiled = inputs.attend(options);
  for (size_t i = 0; i < clean.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(spoiled[i], IsEqualTo(clean[i]));
  }
}

TEST_CASE("Kernels agree on NaN where nothing is hidden") {
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const double bad = GENERATE(values({kNaN, kInfinity}));
  const int what = GENERATE(0, 1, 2);
  CAPTURE(dtype, bad, what);
  torch::manual_seed(3);
  Inputs inputs(dtype);
  auto& spoiled = what == 0 ? inputs.query
      : what == 1           ? inputs.key
                            : inputs.value;
  spoiled[0][1][7][2] = bad;
  const auto fused = inputs.attend(Options().kernel(Kernel::kFused));
  const auto reference = inputs.attend(Options().kernel(Kernel::kReference));
  for (size_t i = 0; i < fused.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(
        fused[i].isnan().any(-1), IsEqualTo(reference[i].isnan().any(-1)));
  }
  CHECK_THAT(
      fused[0], IsCloseTo(reference[0], Tolerance(0.05, 0.02).equal_nan(true)));
}

TEST_CASE("Hidden tokens of a cache may be NaN") {
  const auto kernel = GENERATE(Kernel::kFused, Kernel::kAuto);
  CAPTURE(kernel);
  torch::manual_seed(4);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 16, 64, 2).kernel(kernel));
  attention->eval();
  const auto prompt = torch::randn({2, 9, 8});
  const auto lengths = torch::tensor({int64_t{9}, int64_t{4}});
  const auto token = torch::randn({2, 1, 8});
  const auto decode = [&](const torch::Tensor& padding) {
    auto cache = attention->make_cache(2);
    auto x = prompt.clone();
    x[1].slice(0, 4).copy_(padding.expand({5, 8}));
    const auto first = attention->decode(x, cache, lengths);
    return std::make_pair(first, attention->decode(token, cache));
  };
  const auto [prompt_clean, clean] = decode(torch::zeros({1}));
  const auto [prompt_spoiled, spoiled] = decode(torch::full({1}, kNaN));
  CHECK_THAT(spoiled, IsEqualTo(clean));
  CHECK_THAT(prompt_spoiled[0], IsEqualTo(prompt_clean[0]));
  CHECK_THAT(
      prompt_spoiled[1].slice(0, 0, 4),
      IsEqualTo(prompt_clean[1].slice(0, 0, 4)));
  CHECK(rows_with_nan(prompt_spoiled[1].slice(0, 4)).all().item<bool>());
}

TEST_CASE("Small modules keep NaN from the past") {
  torch::manual_seed(5);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const bool causal = GENERATE(false, true);
  CAPTURE(kernel, causal);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(4, 4, 8, 2).kernel(kernel).causal(causal));
  auto x = torch::randn({1, 6, 4});
  x[0][3][1] = kNaN;
  const auto nan = rows_with_nan(attention(x))[0];
  CHECK(nan.slice(0, 3).all().item<bool>());
  CHECK(nan.slice(0, 0, 3).any().item<bool>() == !causal);
}

TEST_CASE("A small module gives zeros where all scores are -inf") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const int64_t tokens = GENERATE(3, 200);
  CAPTURE(dtype, tokens);
  MultiHeadAttention attention(MultiHeadAttentionOptions(1, 1, 200, 1));
  attention->to(dtype);
  const torch::NoGradGuard no_grad;
  const auto most = dtype == torch::kFloat ? 1e30 : 1e300;
  attention->W_query->weight.fill_(most);
  attention->W_key->weight.fill_(-most);
  attention->W_value->weight.fill_(1);
  attention->out_proj->weight.fill_(1);
  attention->out_proj->bias.fill_(0.5);
  const auto output = attention(torch::ones({1, tokens, 1}, dtype));
  CHECK_THAT(output, IsCloseTo(torch::full_like(output, 0.5)));
}

} // namespace non_finite_test
