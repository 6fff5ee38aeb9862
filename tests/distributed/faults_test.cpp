#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>

namespace torch_attention::testing {

namespace faults_test {

using Options = MultiHeadAttentionOptions;

bool is_last() {
  return group()->getRank() == processes() - 1;
}

/// Text of an error that all processes get if there are others to differ from.
void check_told(const std::function<void()>& call, const std::string& text) {
  if (processes() > 1) {
    THROWS_WITH(call(), text);
  } else {
    CHECK_NOTHROW(call());
  }
}

TEST_CASE("Inputs that differ between processes are told") {
  auto module = distributed::tensor_parallel(Options(8, 48, 16, 24), group());
  check_told(
      [&] {
        module->forward(torch::randn({1, is_last() ? 5 : 4, 8}));
      },
      c10::str(
          "process ", processes() - 1, ": input Float of shape [1, 5, 8]"));
  check_told(
      [&] {
        const auto x = torch::randn({1, 4, 8});
        if (is_last()) {
          module->to(torch::kDouble);
        }
        module->forward(is_last() ? x.to(torch::kDouble) : x);
      },
      "expected the same in all processes");
  if (is_last()) {
    module->to(torch::kFloat);
  }
  if (processes() > 1) {
    // What only one process can see is told to all as well.
    THROWS_WITH(
        module->forward(torch::randn({1, 4, is_last() ? 7 : 8})),
        "whose last dimension is d_in = 8, but got shape");
  }
  CHECK(module->forward(torch::ones({1, 4, 8})).size(2) == 48);
}

TEST_CASE("Modules that differ between processes are told, and stay whole") {
  MultiHeadAttention module(Options(8, 48, 16, 24).causal(!is_last()));
  check_told(
      [&] { distributed::tensor_parallel(*module, group()); }, "causal=false");
  check_told(
      [&] {
        MultiHeadAttention scaled(
            Options(8, 48, 16, 24).scale(is_last() ? 0.5000000001 : 0.5));
        distributed::tensor_parallel(*scaled, group());
      },
      "scale=0.5000000001");
  if (processes() > 1) {
    CHECK(module->options.num_heads() == 24);
    CHECK(distributed::weight_shards(*module).empty());
  }
}

TEST_CASE("Heads that cannot be divided are told") {
  if (processes() == 1) {
    return;
  }
  THROWS_WITH(
      distributed::tensor_parallel(Options(8, 50, 16, 25), group()),
      "expected num_heads divisible by the number of processes");
  THROWS_WITH(
      distributed::tensor_parallel(
          Options(8, 5 * 24, 16, 5 * 24).num_kv_heads(5), group()),
      "expected num_kv_heads divisible by the number of processes");
  THROWS_WITH(
      distributed::tensor_parallel(
          Options(8, 48, 16, 24)
              .qk_norm(HeadNormOptions(HeadNormKind::kLayer)
                           .scope(HeadNormScope::kAllHeads)),
          group()),
      "expected no layer norm of all heads");
}

TEST_CASE("Options of functions that differ between processes are told") {
  const auto x = torch::randn({1, 24, 4, 8});
  check_told(
      [&] {
        distributed::ring_attention(
            x,
            x,
            x,
            group(),
            functional::ScaledDotProductAttentionFuncOptions().causal(
                is_last()));
      },
      "causal 1");
  check_told(
      [&] {
        distributed::ring_attention(
            x,
            x,
            x,
            group(),
            functional::ScaledDotProductAttentionFuncOptions().scale(
                is_last() ? 0.5000000001 : 0.5));
      },
      "scale 0.5000000001");
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({is_last() ? 2 : 3}).requires_grad_()};
        distributed::sum_gradients(parameters, group());
      },
      "sum_gradients: expected the same in all processes");
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({3}), torch::ones({2})};
        for (auto& parameter : parameters) {
          parameter.requires_grad_(!is_last());
        }
        distributed::sum_gradients(parameters, group());
      },
      "Float [3] without a gradient");
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({3}).requires_grad_()};
        distributed::sum_gradients(parameters, group(), is_last() ? 2 : 1);
      },
      "divisor 2");
}

TEST_CASE("A group is needed") {
  THROWS_WITH(
      distributed::tensor_parallel(Options(8, 8, 16, 2), nullptr),
      "expected a group of processes, but got none");
}

} // namespace faults_test

} // namespace torch_attention::testing
