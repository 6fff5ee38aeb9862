// Small modules, which the CPU computes without LibTorch's operators.

#include <support/close.h>
#include <support/test.h>

namespace small_module_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

struct Run {
  torch::Tensor output;
  std::vector<torch::Tensor> gradients;
};

/// Output and all gradients of a seeded module.
Run run(
    MultiHeadAttentionOptions options,
    Kernel kernel,
    torch::ScalarType dtype,
    std::vector<int64_t> input) {
  torch::manual_seed(1);
  MultiHeadAttention attention(options.kernel(kernel));
  attention->to(dtype);
  auto x = torch::randn(input, dtype).requires_grad_();
  Run result;
  result.output = attention(x);
  auto leaves = attention->parameters();
  leaves.push_back(x);
  result.gradients =
      torch::autograd::grad({result.output.pow(2).sum()}, leaves);
  return result;
}

} // namespace

TEST_CASE("A small module equals the reference, gradients included") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto options = GENERATE(
      MultiHeadAttentionOptions(3, 2, 6, 2),
      MultiHeadAttentionOptions(3, 4, 6, 2).qkv_bias(true),
      MultiHeadAttentionOptions(5, 8, 6, 4).num_kv_heads(2).scale(0.3),
      MultiHeadAttentionOptions(5, 4, 6, 1).causal(false),
      MultiHeadAttentionOptions(5, 4, 6, 2).window(2),
      MultiHeadAttentionOptions(5, 4, 6, 2).chunk(4),
      MultiHeadAttentionOptions(5, 4, 6, 2)
          .causal(false)
          .window(2)
          .window_after(2),
      MultiHeadAttentionOptions(5, 4, 6, 2).out_proj(false));
  for (const int64_t T : {1, 2, 6}) {
    CAPTURE(dtype, T);
    const std::vector<int64_t> input = {2, T, options.d_in()};
    const auto small = run(options, Kernel::kAuto, dtype, input);
    const auto reference = run(options, Kernel::kReference, dtype, input);
    CHECK_THAT(small.output.detach(), IsCloseTo(reference.output.detach()));
    for (size_t i = 0; i < small.gradients.size(); ++i) {
      CAPTURE(i);
      CHECK_THAT(small.gradients[i], IsCloseTo(reference.gradients[i]));
    }
    // Were it not the small path, this would test nothing.
    CHECK(
        small.output.grad_fn()->name().find("SmallModule") !=
        std::string::npos);
  }
}

namespace {

bool is_small(const torch::Tensor& output) {
  return output.grad_fn()->name().find("SmallModule") != std::string::npos;
}

MultiHeadAttentionOptions small_options() {
  return MultiHeadAttentionOptions(8, 8, 6, 2);
}

} // namespace

TEST_CASE("Options that small modules do not compute take the general path") {
  // Each is heard: the output differs from that of the small module.
  const auto change = GENERATE(
      std::pair("alibi", small_options().alibi(true)),
      std::pair("sinks", small_options().sinks(true)),
      std::pair("qk_norm", small_options().qk_norm(HeadNormOptions())),
      std::pair("rotary", small_options().rotary(RotaryOptions())),
      std::pair("clip_qkv", small_options().clip_qkv(0.01)),
      std::pair("value_norm_eps", small_options().value_norm_eps(1e-6)),
      std::pair(
          "temperature",
          small_options().temperature(TemperatureOptions(1).scale(2))),
      std::pair("value_scale", small_options().value_scale(0.5)),
      std::pair("out_norm", small_options().out_norm(HeadNormOptions())),
      std::pair(
          "output_gate", small_options().output_gate(OutputGateOptions())),
      std::pair("dropout", small_options().dropout(0.5)));
  CAPTURE(change.first);
  const auto input = std::vector<int64_t>{2, 5, 8};
  const auto plain =
      run(small_options(), Kernel::kAuto, torch::kDouble, input).output;
  CHECK(is_small(plain));
  auto options = change.second;
  torch::manual_seed(1);
  MultiHeadAttention attention(options);
  attention->to(torch::kDouble);
  const auto x = torch::randn(input, torch::kDouble);
  const auto output = attention(x);
  CHECK_FALSE(is_small(output));
  CHECK_FALSE(torch::allclose(output, plain));
  attention->options.kernel(Kernel::kReference);
  if (options.dropout() == 0) {
    CHECK_THAT(output.detach(), IsCloseTo(attention(x).detach()));
  }
}

TEST_CASE("Arguments of a call of a small module take the general path") {
  torch::manual_seed(6);
  const auto numbers = [](torch::IntArrayRef sizes) {
    return torch::randn(sizes, torch::kDouble);
  };
  const auto hidden = torch::ones({5, 5}, torch::kBool).tril(-2);
  const auto call = GENERATE_COPY(
      std::pair(
          "key_lengths", ForwardOptions().key_lengths(torch::tensor({3, 1}))),
      std::pair(
          "key_padding_mask",
          ForwardOptions().key_padding_mask(
              torch::arange(5).eq(1).expand({2, 5}))),
      std::pair("mask", ForwardOptions().mask(hidden)),
      std::pair("bias", ForwardOptions().bias(numbers({5, 5}))),
      std::pair("positions", ForwardOptions().positions(torch::arange(5) + 3)),
      std::pair(
          "rotary_cos",
          ForwardOptions()
              .rotary_cos(numbers({5, 2}))
              .rotary_sin(numbers({5, 2}))),
      std::pair("scores", ForwardOptions().scores([](const auto& scores) {
        return scores.sin();
      })));
  CAPTURE(call.first);
  MultiHeadAttention attention(small_options());
  attention->to(torch::kDouble);
  const auto x = numbers({2, 5, 8});
  CHECK(is_small(attention(x)));
  const auto output = attention(x, call.second);
  CHECK_FALSE(is_small(output));
  attention->options.kernel(Kernel::kReference);
  CHECK_THAT(output.detach(), IsCloseTo(attention(x, call.second).detach()));
  const bool is_read = std::string(call.first) != "positions" &&
      std::string(call.first) != "rotary_cos";
  CHECK(torch::allclose(output, attention(x)) != is_read);
}

TEST_CASE("Packed sequences in a small module take the general path") {
  torch::manual_seed(7);
  MultiHeadAttention attention(small_options());
  const auto x = torch::randn({5, 8});
  const auto starts = torch::tensor({0, 2, 5});
  const auto output = attention(x, ForwardOptions().cu_seqlens(starts));
  const auto expected = torch::cat(
      {attention(x.slice(0, 0, 2).unsqueeze(0)).squeeze(0),
       attention(x.slice(0, 2).unsqueeze(0)).squeeze(0)});
  CHECK_THAT(output.detach(), IsCloseTo(expected.detach()));
}

TEST_CASE("A small module can be differentiated twice") {
  torch::manual_seed(2);
  MultiHeadAttention attention(MultiHeadAttentionOptions(3, 4, 6, 2));
  attention->to(torch::kDouble);
  const auto x = torch::randn({2, 5, 3}, torch::kDouble).requires_grad_();
  const auto second = [&](Kernel kernel) {
    attention->options.kernel(kernel);
    const auto first = torch::autograd::grad(
        {attention(x).pow(2).sum()},
        {x},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  };
  CHECK_THAT(second(Kernel::kAuto), IsCloseTo(second(Kernel::kReference)));
}

TEST_CASE("A small module that is applied twice has the right gradients") {
  torch::manual_seed(5);
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 6, 2));
  attention->to(torch::kDouble);
  const auto x = torch::randn({2, 5, 4}, torch::kDouble).requires_grad_();
  const auto run = [&](Kernel kernel, bool create_graph) {
    attention->options.kernel(kernel);
    const auto y = attention(attention(x));
    return torch::autograd::grad(
        {y.pow(2).sum()},
        {x, attention->W_value->weight},
        {},
        /*retain_graph=*/true,
        create_graph);
  };
  const auto expected = run(Kernel::kReference, false);
  for (const bool create_graph : {false, true}) {
    CAPTURE(create_graph);
    const auto gradients = run(Kernel::kAuto, create_graph);
    CHECK_THAT(gradients[0].detach(), IsCloseTo(expected[0]));
    CHECK_THAT(gradients[1].detach(), IsCloseTo(expected[1]));
  }
}

TEST_CASE("A small module whose layers do not fit says so") {
  MultiHeadAttention attention(MultiHeadAttentionOptions(3, 4, 6, 2));
  const auto x = torch::randn({2, 5, 3});
  const auto linear = [](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
  };
  SECTION("queries of another size") {
    attention->W_query = attention->replace_module("W_query", linear(3, 8));
  }
  SECTION("values of another size") {
    attention->W_value = attention->replace_module("W_value", linear(3, 3));
  }
  SECTION("keys of another input") {
    attention->W_key = attention->replace_module("W_key", linear(2, 4));
  }
  SECTION("an output projection of another input") {
    attention->out_proj = attention->replace_module("out_proj", linear(5, 4));
  }
  // LibTorch before 2.7 throws std::runtime_error from `view`.
  CHECK_THROWS_AS(attention(x), std::exception);
}

TEST_CASE("A long chain of small modules is freed without recursion") {
  MultiHeadAttention attention(MultiHeadAttentionOptions(2, 2, 2, 1));
  auto x = torch::ones({1, 1, 2});
  for (int i = 0; i < 100000; ++i) {
    x = attention(x);
  }
  x.reset();
}

TEST_CASE("Frozen parameters of a small module get no gradient") {
  torch::manual_seed(3);
  MultiHeadAttention attention(MultiHeadAttentionOptions(3, 4, 6, 2));
  attention->W_key->weight.requires_grad_(false);
  attention(torch::randn({2, 5, 3})).sum().backward();
  CHECK_FALSE(attention->W_key->weight.grad().defined());
  CHECK(attention->W_query->weight.grad().defined());
  CHECK(attention->out_proj->bias.grad().defined());
}

TEST_CASE("NaN reaches the later tokens of a small module, not the earlier") {
  torch::manual_seed(4);
  MultiHeadAttention attention(MultiHeadAttentionOptions(3, 4, 6, 2));
  const torch::NoGradGuard no_grad;
  auto x = torch::randn({1, 5, 3});
  const auto before = attention(x);
  x[0][3][1] = std::numeric_limits<float>::quiet_NaN();
  const auto after = attention(x);
  CHECK_THAT(after.slice(1, 0, 3), IsEqualTo(before.slice(1, 0, 3)));
  CHECK(after.slice(1, 3).isnan().all().item<bool>());
}

} // namespace small_module_test
