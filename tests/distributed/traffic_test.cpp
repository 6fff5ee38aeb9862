#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>

#include <functional>
#include <vector>

// The formulas of docs/distributed.md, in the letters that it uses.
namespace torch_attention::testing {

namespace traffic_test {

using distributed::SequenceOptions;
using distributed::TokenLayout;

constexpr int64_t B = 2;
constexpr int64_t T = 96;
constexpr int64_t H = 24;
constexpr int64_t D = 6;
constexpr int64_t C = 10;
constexpr int64_t b = 4;

/// Beside the formulas, to each of the others: a comparison.
int64_t compared() {
  return 1016 * (processes() - 1);
}

/// Returns the bytes that this process sends while `run` runs.
int64_t sent_by(const std::function<void()>& run) {
  distributed::reset_traffic();
  run();
  return distributed::traffic().bytes;
}

int64_t of_all(int64_t own) {
  std::vector<torch::Tensor> sum = {torch::tensor({own})};
  group()->allreduce(sum)->wait();
  return sum[0].item<int64_t>();
}

struct Sent {
  int64_t forward;
  int64_t backward;
};

/// Returns the bytes that a module sends; `x` (B, tokens, C).
template <typename Module>
Sent sent_by_module(Module& module, const torch::Tensor& x) {
  Sent sent{};
  torch::Tensor y;
  sent.forward = sent_by([&] { y = module->forward(x); }) - compared();
  sent.backward = sent_by([&] { y.sum().backward(); });
  return sent;
}

MultiHeadAttentionOptions options(int64_t G) {
  return MultiHeadAttentionOptions(C, C, T, H).head_dim(D).num_kv_heads(G);
}

torch::Tensor tokens(int64_t number) {
  return torch::randn({B, number, C}).requires_grad_();
}

TEST_CASE("tensor_parallel sends what its formula says") {
  const auto P = processes();
  const auto G = GENERATE(int64_t{1}, H);
  auto module = distributed::tensor_parallel(options(G), group());
  const auto sent = sent_by_module(module, tokens(T));
  const auto sum = 2 * B * T * C * b * (P - 1) / P;
  CHECK(sent.forward == sum);
  // The bytes of the gradients of W_key and W_value, of C inputs each.
  const auto of_key_weights = 2 * (P - 1) * (2 * G * D * C * b) / P;
  CHECK(sent.backward == sum + (G < P ? of_key_weights : 0));
}

TEST_CASE("The ring sends what its formula says") {
  const auto P = processes();
  const auto G = GENERATE(int64_t{1}, H);
  const bool causal = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  MultiHeadAttention module(options(G).causal(causal));
  distributed::sequence_parallel(
      *module, group(), SequenceOptions().layout(layout));
  const auto sent = sent_by_module(module, tokens(T / P));
  const auto all_keys = (P - 1) * (2 * B * G * T * D * b) / P;
  if (!causal) {
    CHECK(sent.forward == all_keys);
    CHECK(sent.backward == 2 * all_keys);
  }
  // Causal attention: on average.
  const auto quarters =
      !causal ? 4 : (layout == TokenLayout::kBalanced ? 3 : 2);
  CHECK(of_all(sent.forward) == P * all_keys * quarters / 4);
  CHECK(of_all(sent.backward) == 2 * P * all_keys * quarters / 4);
}

TEST_CASE("all_to_all sends what its formula says") {
  const auto P = processes();
  const auto G = GENERATE(int64_t{1}, H);
  const bool causal = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  MultiHeadAttention module(options(G).causal(causal));
  distributed::sequence_parallel(
      *module, group(), SequenceOptions().layout(layout).all_to_all(true));
  const auto sent = sent_by_module(module, tokens(T / P));
  const auto formula =
      (P - 1) * (B * T * (2 * H + 2 * std::max(G, P)) * D * b) / (P * P);
  CHECK(sent.forward == formula);
  CHECK(sent.backward == formula);
}

TEST_CASE("Rotations that go by the text's length send one text more") {
  const auto P = processes();
  MultiHeadAttention module(
      options(H).rotary(RotaryOptions()
                            .scaling(RotaryScaling::kLongRope)
                            .original_context_length(T)
                            .short_factors({1, 1.5, 2})
                            .long_factors({3, 4, 6})));
  MultiHeadAttention plain(options(H));
  distributed::sequence_parallel(*module, group());
  distributed::sequence_parallel(*plain, group());
  const auto x = tokens(T / P);
  const auto more = sent_by_module(module, x);
  const auto sent = sent_by_module(plain, x);
  CHECK(more.forward == sent.forward + 1016 * (P - 1));
  CHECK(more.backward == sent.backward);
}

TEST_CASE("sum_gradients sends what an all-reduce of them does") {
  const auto P = processes();
  const std::vector<torch::Tensor> parameters = {
      torch::ones({P, 5}).requires_grad_(),
      torch::ones({2 * P}, torch::kDouble).requires_grad_(),
      torch::ones({7})};
  const auto sent =
      sent_by([&] { distributed::sum_gradients(parameters, group()); });
  // The last one has no gradient.
  CHECK(sent == compared() + 2 * (P - 1) * (5 * 4 + 2 * 8));
}

} // namespace traffic_test

} // namespace torch_attention::testing
