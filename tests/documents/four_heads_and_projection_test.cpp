// Document 004: a notebook with four heads without bias and a projection,
// seed 1337. It prints nothing; the values below are those that Python gives.

#include <support/close.h>
#include <support/linear.h>
#include <support/test.h>

#include <cmath>
#include <vector>

namespace four_heads_and_projection_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

constexpr int64_t kTokens = 8;
constexpr int64_t kChannels = 32;
constexpr int64_t kHeadSize = 8;
constexpr int64_t kHeads = 4;

torch::nn::Linear linear_without_bias() {
  return torch::nn::Linear(
      torch::nn::LinearOptions(kChannels, kHeadSize).bias(false));
}

/// The notebook's draws in their order; its `Head` makes its key first.
struct Notebook {
  Notebook() {
    torch::manual_seed(1337);
    x = torch::randn({4, kTokens, kChannels});
    for (int64_t i = 0; i < kHeads; ++i) {
      keys.push_back(linear_without_bias());
      queries.push_back(linear_without_bias());
      values.push_back(linear_without_bias());
    }
    proj = torch::nn::Linear(kChannels, kChannels);
  }

  torch::Tensor x;
  std::vector<torch::nn::Linear> keys, queries, values;
  torch::nn::Linear proj = nullptr;
};

void check_output(const torch::Tensor& out) {
  CHECK_THAT(out, HasShape({4, kTokens, kChannels}));
  CHECK_THAT(
      out[0][0].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {0.272274, 0.330294, -0.150691, 0.086933, -0.001686, -0.232119})));
  CHECK_THAT(
      out[0][7].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {0.133384, -0.140889, -0.177019, -0.055342, -0.159660, 0.074604})));
  CHECK_THAT(
      out[3][7].slice(0, -6),
      IsCloseTo(torch::tensor(
          {-0.020765, 0.277091, 0.146856, -0.215222, -0.098042, -0.179436})));
}

} // namespace

TEST_CASE(
    "Document 004's heads and projection give Python's values",
    "[document_004]") {
  Notebook drawn;
  CHECK_THAT(
      drawn.x[0][0].slice(0, 0, 4),
      IsCloseTo(torch::tensor({0.180772, -0.069988, -0.359623, -0.915204})));
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  const auto scale = 1 / std::sqrt(static_cast<double>(kHeadSize));

  SECTION("as functions of queries, keys and values") {
    std::vector<torch::Tensor> out;
    for (size_t i = 0; i < drawn.keys.size(); ++i) {
      const auto k = drawn.keys[i]->forward(drawn.x);
      const auto q = drawn.queries[i]->forward(drawn.x);
      const auto v = drawn.values[i]->forward(drawn.x);
      const auto options =
          F::ScaledDotProductAttentionFuncOptions().causal(true).scale(scale);
      const auto weights =
          F::attention_weights(F::attention_scores(q, k), kHeadSize, options);
      out.push_back(F::scaled_dot_product_attention(
          q,
          k,
          v,
          F::ScaledDotProductAttentionFuncOptions(options).kernel(kernel)));
      CHECK_THAT(torch::matmul(weights, v), IsCloseTo(out.back()));
    }
    check_output(drawn.proj->forward(torch::cat(out, -1)));
  }
  SECTION("as MultiHeadAttention with the heads' weights stacked") {
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(kChannels, kChannels, kTokens, kHeads)
            .scale(scale)
            .kernel(kernel));
    stack_linears(drawn.queries, attention->W_query);
    stack_linears(drawn.keys, attention->W_key);
    stack_linears(drawn.values, attention->W_value);
    copy_linear(drawn.proj, attention->out_proj);
    check_output(attention->forward(drawn.x));
  }
  SECTION("as MultiHeadAttentionWrapper and a projection") {
    MultiHeadAttentionWrapper heads(
        MultiHeadAttentionWrapperOptions(kChannels, kHeadSize, kTokens, kHeads)
            .scale(scale)
            .kernel(kernel));
    for (size_t i = 0; i < drawn.keys.size(); ++i) {
      const auto& head = *(*heads->heads)[i]->as<CausalAttention>();
      copy_linear(drawn.queries[i], head.W_query);
      copy_linear(drawn.keys[i], head.W_key);
      copy_linear(drawn.values[i], head.W_value);
    }
    check_output(drawn.proj->forward(heads->forward(drawn.x)));
  }
}

TEST_CASE(
    "Document 004's heads draw their key first, our modules their query",
    "[document_004]") {
  const Notebook drawn;
  torch::manual_seed(1337);
  const auto x = torch::randn({4, kTokens, kChannels});
  MultiHeadAttentionWrapper heads(
      MultiHeadAttentionWrapperOptions(kChannels, kHeadSize, kTokens, kHeads));

  CHECK_THAT(x, IsEqualTo(drawn.x));
  for (size_t i = 0; i < drawn.keys.size(); ++i) {
    CAPTURE(i);
    const auto& head = *(*heads->heads)[i]->as<CausalAttention>();
    CHECK_THAT(head.W_query->weight, IsEqualTo(drawn.keys[i]->weight));
    CHECK_THAT(head.W_key->weight, IsEqualTo(drawn.queries[i]->weight));
    CHECK_THAT(head.W_value->weight, IsEqualTo(drawn.values[i]->weight));
  }
}

} // namespace four_heads_and_projection_test
