// Document 001: multi-head attention step by step at (32, 10, 512) with 8
// heads, then as a class, both without a mask and with biases. The document
// prints shapes only and sets no seed; the values below are those that Python
// gives under seed 123.

#include <support/close.h>
#include <support/linear.h>
#include <support/test.h>

#include <cmath>
#include <tuple>

namespace multi_head_step_by_step_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

constexpr int64_t kBatch = 32;
constexpr int64_t kTokens = 10;
constexpr int64_t kModel = 512;
constexpr int64_t kHeads = 8;
constexpr int64_t kHead = kModel / kHeads;

MultiHeadAttentionOptions options_of_class() {
  return MultiHeadAttentionOptions(kModel, kModel, kTokens, kHeads)
      .causal(false)
      .qkv_bias(true);
}

/// The document's cells, drawn and computed in their order.
struct Steps {
  torch::Tensor input = torch::randn({kBatch, kTokens, kModel});
  torch::nn::Linear W_q{kModel, kModel};
  torch::nn::Linear W_k{kModel, kModel};
  torch::nn::Linear W_v{kModel, kModel};
  torch::nn::Linear W_o = nullptr;
  torch::Tensor Q, K, V, scores, weights, attended, concatenated, output;

  void run() {
    Q = W_q->forward(input);
    K = W_k->forward(input);
    V = W_v->forward(input);
  }

  void split() {
    for (auto* x : {&Q, &K, &V}) {
      *x = x->reshape({kBatch, kTokens, kHeads, kHead}).permute({0, 2, 1, 3});
    }
  }

  void attend() {
    scores = F::attention_scores(Q, K) / std::sqrt(kHead);
    weights = F::attention_weights(
        scores,
        kHead,
        // The step has divided already.
        F::ScaledDotProductAttentionFuncOptions().scale(1.0));
    attended = torch::matmul(weights, V);
  }

  void concatenate() {
    concatenated =
        attended.permute({0, 2, 1, 3}).reshape({kBatch, kTokens, kModel});
  }

  void project() {
    W_o = torch::nn::Linear(kModel, kModel);
    output = W_o->forward(concatenated);
  }
};

Steps run_all_steps() {
  torch::manual_seed(123);
  Steps steps;
  steps.run();
  steps.split();
  steps.attend();
  steps.concatenate();
  steps.project();
  return steps;
}

} // namespace

TEST_CASE("Document 001 prints the shape after each step", "[document_001]") {
  Steps steps;
  CHECK_THAT(steps.input, HasShape({32, 10, 512}));

  steps.run();
  CHECK_THAT(steps.Q, HasShape({32, 10, 512}));
  CHECK_THAT(steps.K, HasShape({32, 10, 512}));
  CHECK_THAT(steps.V, HasShape({32, 10, 512}));

  steps.split();
  CHECK_THAT(steps.Q, HasShape({32, 8, 10, 64}));
  CHECK_THAT(steps.K, HasShape({32, 8, 10, 64}));
  CHECK_THAT(steps.V, HasShape({32, 8, 10, 64}));

  // The document's text gives (32, 8, 10, 10) as the shape of the "attention
  // output": that of the weights. Its code prints (32, 8, 10, 64).
  steps.attend();
  CHECK_THAT(steps.scores, HasShape({32, 8, 10, 10}));
  CHECK_THAT(steps.weights, HasShape({32, 8, 10, 10}));
  CHECK_THAT(steps.attended, HasShape({32, 8, 10, 64}));

  steps.concatenate();
  CHECK_THAT(steps.concatenated, HasShape({32, 10, 512}));

  steps.project();
  CHECK_THAT(steps.output, HasShape({32, 10, 512}));
}

TEST_CASE(
    "Document 001's steps give Python's values under seed 123",
    "[document_001]") {
  const auto steps = run_all_steps();
  CHECK_THAT(
      steps.weights[0][0][0].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {0.093916, 0.131267, 0.164635, 0.078663, 0.098356, 0.093663})));
  CHECK_THAT(
      steps.concatenated[0][0].slice(0, 0, 4),
      IsCloseTo(torch::tensor({-0.215510, -0.337135, 0.073366, 0.047083})));
  CHECK_THAT(
      steps.output[0][0].slice(0, 0, 4),
      IsCloseTo(torch::tensor({-0.067903, 0.083605, 0.092370, 0.158969})));
  CHECK_THAT(
      steps.output[31][9].slice(0, -4),
      IsCloseTo(torch::tensor({0.072366, -0.040312, 0.125630, -0.059337})));
  CHECK_THAT(
      steps.weights.sum(-1), IsCloseTo(torch::ones({kBatch, kHeads, kTokens})));
}

TEST_CASE(
    "MultiHeadAttention with the weights of document 001's steps gives the "
    "steps' output",
    "[document_001]") {
  const auto steps = run_all_steps();
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  MultiHeadAttention attention(options_of_class().kernel(kernel));
  copy_linear(steps.W_q, attention->W_query);
  copy_linear(steps.W_k, attention->W_key);
  copy_linear(steps.W_v, attention->W_value);
  copy_linear(steps.W_o, attention->out_proj);

  SECTION("with the document's own softmax of the scores") {
    CHECK_THAT(
        F::softmax_naive(steps.scores, /*dim=*/-1), IsCloseTo(steps.weights));
  }
  SECTION("as a function of queries, keys and values") {
    CHECK_THAT(
        F::scaled_dot_product_attention(
            steps.Q,
            steps.K,
            steps.V,
            F::ScaledDotProductAttentionFuncOptions().kernel(kernel)),
        IsCloseTo(steps.attended));
  }
  SECTION("as a module") {
    CHECK_THAT(attention->forward(steps.input), IsCloseTo(steps.output));
  }
  SECTION("as a module that also returns the weights") {
    const auto [output, weights] = attention->forward_with_weights(steps.input);
    CHECK_THAT(output, IsCloseTo(steps.output));
    CHECK_THAT(weights, IsCloseTo(steps.weights));
  }
}

TEST_CASE(
    "Document 001's class gives Python's values under seed 123",
    "[document_001]") {
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttention model(options_of_class().kernel(kernel));
  const auto x = torch::randn({2, kTokens, kModel});

  const auto output = model->forward(x);

  CHECK_THAT(x, HasShape({2, 10, 512}));
  CHECK_THAT(output, HasShape({2, 10, 512}));
  CHECK(model->head_dim == 64);
  CHECK_THAT(
      x[0][0].slice(0, 0, 3),
      IsCloseTo(torch::tensor({1.397970, 1.821045, 0.028070})));
  CHECK_THAT(
      output[0][0].slice(0, 0, 4),
      IsCloseTo(torch::tensor({-0.083165, -0.102972, -0.021491, 0.227748})));
  CHECK_THAT(
      output[1][9].slice(0, -4),
      IsCloseTo(torch::tensor({-0.241155, -0.144418, 0.003401, -0.292034})));
}

} // namespace multi_head_step_by_step_test
