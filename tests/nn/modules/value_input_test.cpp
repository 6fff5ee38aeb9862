// Values that are made of other tokens than queries and keys.

#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace value_input_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Sizes = std::vector<int64_t>;

torch::Tensor draw(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

int64_t among(std::mt19937& engine, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(engine() % (most - least + 1));
}

/// (B, T, H * D) -> (B, H, T, D), each head of keys repeated for its queries.
torch::Tensor heads_of(const torch::Tensor& x, int64_t H, int64_t groups = 1) {
  return x.unflatten(-1, Sizes{H, -1})
      .transpose(1, 2)
      .repeat_interleave(groups, 1);
}

/// Attention by LibTorch's operators. `hidden` broadcasts to (B, H, T, S), or
/// is undefined.
template <typename Module>
torch::Tensor by_operators(
    Module& module,
    const torch::Tensor& x,
    const torch::Tensor& keys_of,
    const torch::Tensor& values_of,
    const torch::Tensor& hidden) {
  const auto H = module->options.num_heads();
  const auto kv_heads = module->options.num_kv_heads().value_or(H);
  const auto linear = [](const torch::nn::Linear& layer,
                         const torch::Tensor& of) {
    return torch::nn::functional::linear(of, layer->weight, layer->bias);
  };
  const auto queries = heads_of(linear(module->W_query, x), H);
  const auto keys =
      heads_of(linear(module->W_key, keys_of), kv_heads, H / kv_heads);
  const auto values =
      heads_of(linear(module->W_value, values_of), kv_heads, H / kv_heads);
  auto scores = torch::matmul(queries, keys.transpose(-2, -1)) /
      std::sqrt(static_cast<double>(module->head_dim));
  if (hidden.defined()) {
    scores =
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  const auto context = torch::matmul(scores.softmax(-1), values);
  return linear(module->out_proj, context.transpose(1, 2).flatten(2));
}

/// Compares outputs and the gradients of inputs and parameters.
template <typename Module>
void check_same(
    Module& module,
    const std::vector<torch::Tensor>& inputs,
    const torch::Tensor& output,
    const torch::Tensor& expected) {
  CHECK_THAT(output, IsCloseTo(expected));
  auto wanted = inputs;
  for (const auto& parameter : module->parameters()) {
    wanted.push_back(parameter);
  }
  const auto gradient = torch::randn_like(expected);
  check_all_close(
      torch::autograd::grad({output}, wanted, {gradient}),
      torch::autograd::grad({expected}, wanted, {gradient}));
}

MultiHeadAttentionOptions random_options(std::mt19937& engine) {
  const auto kv_heads = among(engine, 1, 2);
  const auto heads = kv_heads * among(engine, 1, 3);
  auto options = MultiHeadAttentionOptions(
                     among(engine, 1, 9), among(engine, 1, 9), 40, heads)
                     .head_dim(among(engine, 1, 5))
                     .num_kv_heads(kv_heads)
                     .qkv_bias(engine() % 2 == 0)
                     .causal(engine() % 2 == 0);
  if (engine() % 2 == 0) {
    options.value_dim(among(engine, 1, 6));
  }
  return options;
}

} // namespace

TEST_CASE("Self-attention makes values of another input") {
  std::mt19937 engine(1);
  torch::manual_seed(1);
  for (int i = 0; i < 40; ++i) {
    MultiHeadAttention attention(random_options(engine).kernel(
        i % 2 == 0 ? Kernel::kAuto : Kernel::kReference));
    attention->to(torch::kDouble);
    const auto& options = attention->options;
    INFO(options.d_in() << ", " << options.num_heads());
    const auto B = among(engine, 1, 3);
    const auto T = among(engine, 1, 17);
    const auto x = draw({B, T, options.d_in()}).requires_grad_();
    const auto value = draw({B, T, options.d_in()}).requires_grad_();
    auto padding = torch::rand({B, T}).lt(0.3);
    padding.select(1, 0).fill_(false);
    auto hidden = padding.view({B, 1, 1, T});
    if (options.causal()) {
      hidden = hidden.bitwise_or(
          torch::ones({T, T}, torch::kBool).triu(/*diagonal=*/1));
    }
    const auto call =
        ForwardOptions().value_input(value).key_padding_mask(padding);
    const auto expected = by_operators(attention, x, x, value, hidden);
    check_same(attention, {x, value}, attention(x, call), expected);
    const auto [output, weights] = attention->forward_with_weights(x, call);
    CHECK_THAT(output, IsCloseTo(expected));
    CHECK_THAT(
        weights,
        IsCloseTo(std::get<1>(attention->forward_with_weights(
            x, ForwardOptions().key_padding_mask(padding)))));
  }
}

TEST_CASE("Cross-attention makes values of another input than the context") {
  std::mt19937 engine(2);
  torch::manual_seed(2);
  for (int i = 0; i < 40; ++i) {
    const auto drawn = random_options(engine);
    CrossAttention attention(
        CrossAttentionOptions(
            drawn.d_in(), among(engine, 1, 9), drawn.d_out(), drawn.num_heads())
            .head_dim(drawn.head_dim())
            .value_dim(drawn.value_dim())
            .num_kv_heads(drawn.num_kv_heads())
            .qkv_bias(drawn.qkv_bias())
            .needs_value_input(engine() % 2 == 0));
    attention->to(torch::kDouble);
    const auto B = among(engine, 1, 3);
    const auto S = among(engine, 1, 9);
    const Sizes sizes{B, S, attention->options.d_context()};
    const auto x =
        draw({B, among(engine, 1, 9), drawn.d_in()}).requires_grad_();
    const auto context = draw(sizes).requires_grad_();
    const auto value = draw(sizes).requires_grad_();
    const auto call = ForwardOptions().value_input(value);
    const auto expected = by_operators(attention, x, context, value, {});
    check_same(
        attention, {x, context, value}, attention(x, context, call), expected);
    CHECK_THAT(
        std::get<0>(attention->forward_with_weights(x, context, call)),
        IsCloseTo(expected));

    const auto lengths = torch::randint(1, S + 1, {B});
    const auto hidden =
        torch::arange(S).ge(lengths.unsqueeze(1)).view({B, 1, 1, S});
    CHECK_THAT(
        attention->decode(x, attention->make_cache(context, lengths, value)),
        IsCloseTo(by_operators(attention, x, context, value, hidden).detach()));
  }
}

TEST_CASE("All options of self-attention take another input for values") {
  using Options = MultiHeadAttentionOptions;
  const auto base = [] { return Options(6, 8, 16, 4).qkv_bias(true); };
  const std::vector<Options> all = {
      base().rotary(RotaryOptions()).qk_norm(HeadNormOptions()),
      base().alibi(true).sinks(true),
      base().clip_qkv(0.4).value_norm_eps(1e-6),
      base()
          .output_gate(OutputGateOptions())
          .temperature(TemperatureOptions(4)),
      base().window(3).softcap(2),
      base().num_kv_heads(1).needs_value_input(true)};
  for (const auto& options : all) {
    torch::manual_seed(3);
    MultiHeadAttention attention(options);
    attention->to(torch::kDouble);
    attention->eval();
    const auto x = draw({2, 7, 6});
    const auto value = draw({2, 7, 6});
    const auto other = draw({2, 7, 6});
    const auto run = [&](const torch::Tensor& of) {
      return attention->forward_with_weights(
          x, ForwardOptions().value_input(of));
    };
    const auto [output, weights] = run(value);
    CHECK_THAT(std::get<1>(run(other)), IsEqualTo(weights));
    CHECK_FALSE(torch::allclose(std::get<0>(run(other)), output));
    CHECK_THAT(
        attention(x, ForwardOptions().value_input(value)), IsCloseTo(output));
    // Swapping the projection of values is a change of their input, too.
    attention->options.needs_value_input(false);
    const auto turn = std::get<0>(torch::linalg_qr(draw({6, 6})));
    const auto expected =
        attention(x, ForwardOptions().value_input(torch::matmul(x, turn)));
    {
      const torch::NoGradGuard no_grad;
      attention->W_value->weight.set_data(
          torch::matmul(attention->W_value->weight, turn.t()));
    }
    CHECK_THAT(attention(x), IsCloseTo(expected));
  }
}

TEST_CASE("Packed sequences with another input for values are as if apart") {
  std::mt19937 engine(4);
  torch::manual_seed(4);
  for (int i = 0; i < 20; ++i) {
    auto attention = MultiHeadAttention(random_options(engine));
    attention->to(torch::kDouble);
    const auto d_in = attention->options.d_in();
    CrossAttention cross(CrossAttentionOptions(d_in, d_in, 6, 2));
    cross->to(torch::kDouble);
    std::vector<torch::Tensor> all_x;
    std::vector<torch::Tensor> all_values;
    std::vector<torch::Tensor> expected;
    std::vector<torch::Tensor> expected_cross;
    std::vector<int64_t> starts = {0};
    for (int64_t n = among(engine, 1, 4); n > 0; --n) {
      const auto x = draw({1, among(engine, 1, 6), d_in});
      const auto value = draw(x.sizes());
      const auto call = ForwardOptions().value_input(value);
      expected.push_back(attention(x, call));
      expected_cross.push_back(cross(x, x, call));
      all_x.push_back(x);
      all_values.push_back(value);
      starts.push_back(starts.back() + x.size(1));
    }
    const auto x = torch::cat(all_x, 1);
    const auto value = torch::cat(all_values, 1);
    const auto call = [&](const torch::Tensor& values) {
      return ForwardOptions()
          .cu_seqlens(torch::tensor(starts))
          .value_input(values);
    };
    CHECK_THAT(attention(x, call(value)), IsCloseTo(torch::cat(expected, 1)));
    // Without the batch.
    CHECK_THAT(
        attention(x[0], call(value[0])), IsCloseTo(torch::cat(expected, 1)[0]));
    const auto of_cross = [&](const torch::Tensor& values) {
      return call(values).cu_seqlens_k(torch::tensor(starts));
    };
    CHECK_THAT(
        cross(x, x, of_cross(value)), IsCloseTo(torch::cat(expected_cross, 1)));
    CHECK_THAT(
        cross(x[0], x[0], of_cross(value[0])),
        IsCloseTo(torch::cat(expected_cross, 1)[0]));
  }
}

TEST_CASE("Wrong inputs for values are refused") {
  torch::manual_seed(5);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(6, 8, 16, 2).needs_value_input(true));
  CrossAttention cross(
      CrossAttentionOptions(6, 5, 8, 2).needs_value_input(true));
  const auto x = torch::randn({2, 4, 6});
  const auto context = torch::randn({2, 3, 5});
  const auto with = [](const torch::Tensor& value) {
    return ForwardOptions().value_input(value);
  };
  const auto text = c10::str(attention, cross);
  CHECK_THAT(text, ContainsText("num_heads=2, needs_value_input=true"));
  CHECK_THAT(text, ContainsText("qkv_bias=false, needs_value_input=true"));
  const auto refuses = [&](const torch::Tensor& value,
                           const std::string& message) {
    THROWS_WITH(attention(x, with(value)), message);
    THROWS_WITH(attention->forward_with_weights(x, with(value)), message);
  };
  refuses({}, "MultiHeadAttention: expected value_input (needs_value_input)");
  refuses(x[0], "expected value_input of shape (B, T, 6), but got [4, 6]");
  refuses(
      torch::randn({2, 3, 6}),
      "expected value_input of the shape of the input, [2, 4, 6], but got [2, "
      "3, 6]");
  refuses(torch::randn({2, 4, 5}), "value_input");
  refuses(
      x.to(torch::kDouble),
      "expected value_input of dtype Float, that of the weights, but got "
      "Double");
  refuses(x.to(torch::kLong), "floating-point value_input");
  refuses(x.to(torch::kMeta), "expected value_input on cpu");
  refuses(x.to_sparse(), "dense value_input");
  auto cache = attention->make_cache(2);
  THROWS_WITH(
      attention->decode(x, cache), "expected needs_value_input = false");

  THROWS_WITH(
      cross(x, context),
      "CrossAttention: expected value_input (needs_value_input)");
  THROWS_WITH(
      cross(x, context, with(x)),
      "expected value_input whose last dimension is the size of a token = 5");
  THROWS_WITH(
      cross(x, context, with(torch::randn({2, 4, 5}))),
      "expected value_input of the shape of the context, [2, 3, 5]");
  THROWS_WITH(cross->make_cache(context), "value_input");
  THROWS_WITH(cross->make_cache(context, {}, x), "value_input");
  const auto of_context = cross->make_cache(context, {}, context);
  cross->eval();
  THROWS_WITH(
      cross->decode(x, of_context, with(context)),
      "expected no value_input for decode");
}

TEST_CASE("Modules without value_input refuse it") {
  torch::manual_seed(6);
  const auto x = torch::randn({2, 4, 6});
  const auto call = ForwardOptions().value_input(x);
  const std::string message = "expected no value_input";
  SelfAttentionV1 v1(6, 4);
  THROWS_WITH(v1(x, call), "SelfAttentionV1: " + message);
  SelfAttentionV2 v2(6, 4);
  THROWS_WITH(v2(x, call), "SelfAttentionV2: " + message);
  THROWS_WITH(v2->forward_with_weights(x, call), message);
  CausalAttention causal(6, 4, 8, 0.0);
  THROWS_WITH(causal(x, call), "CausalAttention: " + message);
  THROWS_WITH(causal->forward_with_weights(x, call), message);
  MultiHeadAttentionWrapper wrapper(6, 4, 8, 0.0, 2);
  THROWS_WITH(wrapper(x, call), "MultiHeadAttentionWrapper: " + message);
  THROWS_WITH(wrapper->forward_with_weights(x, call), message);
  LatentAttention latent(LatentAttentionOptions(6, 6, 8, 2)
                             .kv_rank(4)
                             .nope_dim(4)
                             .rope_dim(2)
                             .value_dim(4));
  THROWS_WITH(latent(x, call), "LatentAttention: " + message);
}

} // namespace value_input_test
