#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>

#include <memory>

namespace torch_attention::testing {

namespace sequence_modules_test {

using distributed::SequenceOptions;
using distributed::TokenLayout;

constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 24;
/// Divisible by twice each number of processes.
constexpr int64_t kTokens = 96;

int64_t few_key_heads() {
  return processes() == 3 ? 3 : 4;
}

TEST_CASE("Modules attend over the tokens of all processes") {
  const auto all_to_all = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto dtype = torch::kDouble;
  const auto options = MultiHeadAttentionOptions(10, 14, kTokens, kHeads)
                           .head_dim(6)
                           .qkv_bias(true)
                           .num_kv_heads(few_key_heads())
                           .rotary(RotaryOptions())
                           .alibi(true)
                           .sinks(true)
                           .window(30)
                           .qk_norm(HeadNormOptions());
  torch::manual_seed(5);
  MultiHeadAttention whole(options);
  whole->to(dtype);
  MultiHeadAttention module(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone()));
  const auto sequence = SequenceOptions().layout(layout).all_to_all(all_to_all);
  CHECK(distributed::sequence_parallel(*module, group(), sequence) == 1);
  torch::manual_seed(6);
  const auto x_of_whole =
      torch::randn({kBatch, kTokens, 10}, dtype).requires_grad_();
  const auto own = [&](const torch::Tensor& x) {
    return distributed::own_tokens(x, 1, group(), layout);
  };
  const auto x = own(x_of_whole).detach().requires_grad_();
  const auto lengths = ForwardOptions().key_lengths(torch::tensor({96, 50}));
  const auto output = module->forward(x, lengths);
  const auto expected = whole->forward(x_of_whole, lengths);
  CHECK_THAT(output, IsAsOfOne(own(expected)));
  CHECK_THAT(
      distributed::joined_tokens(output, 1, group(), layout),
      IsAsOfOne(expected));
  output.square().sum().backward();
  expected.square().sum().backward();
  CHECK_THAT(x.grad(), IsAsOfOne(own(x_of_whole.grad())));
  distributed::sum_gradients(module->parameters(), group());
  check_gradients(*module, *whole);
  module->eval();
  if (processes() > 1) {
    THROWS_WITH(
        module->forward(
            x, ForwardOptions().scores([](const auto& all) { return all; })),
        "expected no function `scores`, where several processes share the "
        "tokens");
  }
  auto cache = module->make_cache(kBatch);
  if (processes() > 1) {
    THROWS_WITH(
        module->decode(x, cache, DecodeOptions().scores([](const auto& all) {
          return all;
        })),
        "expected no function `scores`, where several processes share the "
        "tokens");
    THROWS_WITH(
        module->forward_with_weights(x),
        "forward_with_weights needs all tokens");
  }
}

TEST_CASE("Modules make the values of all processes of another input") {
  const auto all_to_all = GENERATE(false, true);
  const auto whole_context = GENERATE(false, true);
  const auto dtype = torch::kDouble;
  torch::manual_seed(5);
  MultiHeadAttention self(
      MultiHeadAttentionOptions(10, 14, kTokens, kHeads).head_dim(6));
  CrossAttention cross(CrossAttentionOptions(10, 10, 14, kHeads).head_dim(6));
  self->to(dtype);
  cross->to(dtype);
  MultiHeadAttention own_self(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(self->clone()));
  CrossAttention own_cross(
      std::dynamic_pointer_cast<CrossAttentionImpl>(cross->clone()));
  const auto sequence =
      SequenceOptions().all_to_all(all_to_all).whole_context(whole_context);
  distributed::sequence_parallel(*own_self, group(), sequence);
  distributed::sequence_parallel(*own_cross, group(), sequence);
  torch::manual_seed(6);
  const auto draw = [&] {
    return torch::randn({kBatch, kTokens, 10}, dtype).requires_grad_();
  };
  const auto own = [&](const torch::Tensor& x) {
    return distributed::own_tokens(x, 1, group(), TokenLayout::kContiguous);
  };
  const auto x = draw();
  const auto value = draw();
  const auto own_x = own(x).detach().requires_grad_();
  const auto own_value = own(value).detach().requires_grad_();
  const auto expected = self->forward(x, ForwardOptions().value_input(value));
  const auto output =
      own_self->forward(own_x, ForwardOptions().value_input(own_value));
  CHECK_THAT(output, IsAsOfOne(own(expected)));
  expected.square().sum().backward();
  output.square().sum().backward();
  CHECK_THAT(own_x.grad(), IsAsOfOne(own(x.grad())));
  CHECK_THAT(own_value.grad(), IsAsOfOne(own(value.grad())));

  const torch::NoGradGuard no_grad;
  const auto context = draw();
  const auto of_context = [&](const torch::Tensor& all) {
    return whole_context ? all.detach() : own(all).detach();
  };
  const auto of_cross =
      cross->forward(x, context, ForwardOptions().value_input(value));
  CHECK_THAT(
      own_cross->forward(
          own_x,
          of_context(context),
          ForwardOptions().value_input(of_context(value))),
      IsAsOfOne(own(of_cross)));
  cross->eval();
  own_cross->eval();
  const auto cache =
      own_cross->make_cache(of_context(context), {}, of_context(value));
  // Each process decodes its own queries of a whole context, or all of them.
  CHECK_THAT(
      own_cross->decode(x, cache),
      IsAsOfOne(
          cross->forward(x, context, ForwardOptions().value_input(value))));
}

TEST_CASE("Rotations that go by the length of the text count all tokens") {
  const auto scaling =
      GENERATE(RotaryScaling::kDynamic, RotaryScaling::kLongRope);
  // The tokens of one process alone would be a short text.
  const auto original = GENERATE(int64_t{90}, kTokens);
  auto rotary =
      RotaryOptions().scaling(scaling).original_context_length(original);
  if (scaling == RotaryScaling::kDynamic) {
    rotary.factor(4);
  } else {
    rotary.short_factors({1, 1.5, 2}).long_factors({3, 4, 6});
  }
  torch::manual_seed(5);
  MultiHeadAttention whole(MultiHeadAttentionOptions(10, 14, kTokens, kHeads)
                               .head_dim(6)
                               .rotary(rotary));
  whole->to(torch::kDouble);
  MultiHeadAttention module(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone()));
  distributed::sequence_parallel(*module, group());
  const auto x = torch::randn({kBatch, kTokens, 10}, torch::kDouble);
  const auto own = [&](const torch::Tensor& of_all) {
    return distributed::own_tokens(of_all, 1, group());
  };
  const auto positions = torch::arange(kTokens) + 7;
  for (const auto& call :
       {ForwardOptions(),
        ForwardOptions().key_lengths(torch::tensor({88, 50}))}) {
    CHECK_THAT(
        module->forward(own(x), call), IsAsOfOne(own(whole->forward(x, call))));
  }
  CHECK_THAT(
      module->forward(
          own(x),
          ForwardOptions().positions(
              distributed::own_tokens(positions, 0, group()))),
      IsAsOfOne(own(whole->forward(x, ForwardOptions().positions(positions)))));
  if (processes() > 1) {
    // With and without what the length goes by, all meet.
    const auto call = group()->getRank() == 0
        ? ForwardOptions().key_lengths(torch::tensor({88, 50}))
        : ForwardOptions();
    THROWS_WITH(module->forward(own(x), call), "key_lengths none");
  }
}

TEST_CASE("Chunks do not follow padding among processes") {
  MultiHeadAttention whole(
      MultiHeadAttentionOptions(10, 14, kTokens, kHeads).head_dim(6).chunk(5));
  whole->to(torch::kDouble);
  auto module = MultiHeadAttention(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone()));
  distributed::sequence_parallel(*module, group());
  const auto x = torch::randn({kBatch, kTokens, 10}, torch::kDouble);
  const auto own = [&](const torch::Tensor& of_all) {
    return distributed::own_tokens(of_all, 1, group());
  };
  auto padding = torch::zeros({kBatch, kTokens}, torch::kBool);
  padding.slice(1, kTokens - 3).fill_(true);
  const auto call = ForwardOptions().key_padding_mask(padding);
  CHECK_THAT(
      module->forward(own(x), call), IsAsOfOne(own(whole->forward(x, call))));
  padding[0].slice(0, 0, 3).fill_(true);
  if (processes() == 1) {
    CHECK_THAT(module->forward(x, call), IsAsOfOne(whole->forward(x, call)));
  } else {
    THROWS_WITH(
        module->forward(own(x), call), "expected no padding before the tokens");
  }
}

TEST_CASE("One process that shares its tokens with none does what it did") {
  torch::manual_seed(5);
  MultiHeadAttention whole(MultiHeadAttentionOptions(10, 14, kTokens, kHeads)
                               .head_dim(6)
                               .alibi(true)
                               .rotary(RotaryOptions()));
  whole->to(torch::kDouble);
  MultiHeadAttention module(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone()));
  CHECK(distributed::sequence_parallel(*module, group()) == 1);
  if (processes() > 1) {
    return;
  }
  const auto x = torch::randn({1, kTokens, 10}, torch::kDouble);
  for (const auto& call :
       {ForwardOptions().cu_seqlens(torch::tensor({0, 40, int(kTokens)})),
        ForwardOptions().scores([](const auto& scores) { return 2 * scores; }),
        ForwardOptions().positions(torch::arange(3, 3 + kTokens))}) {
    CHECK(module->forward(x, call).equal(whole->forward(x, call)));
  }
  CHECK(module->forward(x.narrow(1, 0, 7)).size(1) == 7);
}

} // namespace sequence_modules_test

} // namespace torch_attention::testing
