// Rotary embedding that goes by the length of the text, and by the caller's own
// angles.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <limits>

namespace rotary_length_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

RotaryOptions dynamic() {
  return RotaryOptions()
      .scaling(RotaryScaling::kDynamic)
      .factor(3)
      .original_context_length(16);
}

RotaryOptions longrope() {
  return RotaryOptions()
      .scaling(RotaryScaling::kLongRope)
      .factor(4)
      .original_context_length(16)
      .short_factors({1.0, 1.1, 1.2, 1.5})
      .long_factors({1.0, 2.0, 5.0, 9.0});
}

RotaryOptions yarn() {
  return RotaryOptions()
      .scaling(RotaryScaling::kYarn)
      .factor(4)
      .original_context_length(16)
      .fast_turns(2)
      .slow_turns(0.5)
      .truncate(false);
}

struct Row {
  const char* name;
  RotaryOptions options;
  int64_t length;
  /// Cosines and sines of the last token, by `transformers` 5.23.
  std::vector<float> cos;
  std::vector<float> sin;
};

MultiHeadAttention make(const RotaryOptions& rotary) {
  torch::manual_seed(51);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 16, 64, 2).rotary(rotary));
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

torch::Tensor input(int64_t T) {
  torch::manual_seed(52);
  return torch::randn({2, T, 8}, torch::kDouble);
}

} // namespace

TEST_CASE("Rotary scalings that go by length have transformers' angles") {
  const auto row = GENERATE(values<Row>({
      {"dynamic, short",
       dynamic(),
       10,
       {-0.91113025F, 0.62160993F, 0.99595273F, 0.99995953F},
       {0.41211849F, 0.78332692F, 0.089878544F, 0.0089998795F}},
      {"dynamic, one more",
       dynamic(),
       17,
       {-0.95765948F, 0.059838247F, 0.98983842F, 0.99990922F},
       {-0.28790331F, 0.99820811F, 0.14219674F, 0.013473276F}},
      {"dynamic, long",
       dynamic(),
       40,
       {0.26664293F, -0.59608591F, 0.99217683F, 0.99997485F},
       {0.96379536F, 0.80292064F, 0.12484032F, 0.0070908493F}},
      {"yarn without truncate",
       yarn(),
       30,
       {-0.85176033F, 0.85226345F, 1.1356384F, 1.1385995F},
       {-0.75563306F, 0.75506556F, 0.082478337F, 0.0082549918F}},
      {"longrope, short",
       longrope(),
       16,
       {-0.93042392F, 0.25190726F, 1.2151891F, 1.2246836F},
       {0.79643679F, 1.1985586F, 0.15269473F, 0.012247245F}},
      {"longrope, one more",
       longrope(),
       17,
       {-1.1728886F, 0.85328799F, 1.2241179F, 1.224743F},
       {-0.35260811F, 0.87857825F, 0.039185151F, 0.0021773232F}},
      {"longrope, long",
       longrope(),
       30,
       {-0.91617966F, 0.14758509F, 1.2226855F, 1.2247386F},
       {-0.81278223F, 1.2158202F, 0.070995383F, 0.0039463933F}},
  }));
  CAPTURE(row.name);
  // Each pair (1, 0) becomes cosine and sine.
  const auto x = torch::cat({torch::ones({1, 4}), torch::zeros({1, 4})}, -1);
  CHECK_THAT(
      functional::rotary_embedding(
          x, torch::tensor({row.length - 1}), row.options),
      IsCloseTo(
          torch::cat({torch::tensor(row.cos), torch::tensor(row.sin)})
              .unsqueeze(0),
          Tolerance(0, 3e-6)));
}

TEST_CASE("Modules rotate by the length of each text") {
  const auto rotary = GENERATE(values({dynamic(), longrope()}));
  auto attention = make(rotary);
  const auto by_function = [&](const torch::Tensor& x) {
    const auto heads = [&](const torch::Tensor& projected) {
      return projected.unflatten(-1, {2, 8}).transpose(1, 2);
    };
    const auto positions = torch::arange(x.size(1));
    const auto context = functional::scaled_dot_product_attention(
        functional::rotary_embedding(
            heads(attention->W_query(x)), positions, rotary),
        functional::rotary_embedding(
            heads(attention->W_key(x)), positions, rotary),
        heads(attention->W_value(x)),
        functional::ScaledDotProductAttentionFuncOptions().causal(true));
    return attention->out_proj(context.transpose(1, 2).flatten(2));
  };
  // A long text does not change how a short one is rotated after it.
  for (const int64_t T : {12, 40, 12, 17, 16}) {
    CAPTURE(T);
    const auto x = input(T);
    const auto expected = by_function(x);
    CHECK_THAT(attention->forward(x), IsCloseTo(expected));
    CHECK_THAT(
        attention->forward(
            x, ForwardOptions().positions(torch::arange(T).expand({2, T}))),
        IsCloseTo(expected));
    auto cache = attention->make_cache(2);
    CHECK_THAT(attention->decode(x, cache), IsCloseTo(expected));
  }
}

TEST_CASE("Padding does not lengthen a text") {
  const auto rotary = GENERATE(values({dynamic(), longrope()}));
  auto attention = make(rotary);
  const auto x = input(12);
  const auto expected = attention->forward(x);
  auto cache = attention->make_cache(2);
  const auto padded = torch::constant_pad_nd(x, {0, 0, 0, 10});
  const auto context =
      attention->decode(padded, cache, DecodeOptions(torch::tensor({12, 12})));
  CHECK_THAT(context.slice(1, 0, 12), IsCloseTo(expected));
  CHECK_THAT(
      attention
          ->forward(
              padded, ForwardOptions().key_lengths(torch::tensor({12, 9})))
          .slice(1, 0, 9),
      IsCloseTo(expected.slice(1, 0, 9)));
}

TEST_CASE("Positions at the end of all numbers are rotated like others") {
  auto attention = make(RotaryOptions());
  const auto x = input(2);
  const auto most = std::numeric_limits<int64_t>::max();
  CHECK(attention
            ->forward(
                x, ForwardOptions().positions(torch::tensor({most - 1, most})))
            .isfinite()
            .all()
            .item<bool>());
}

TEST_CASE(
    "A cache of short texts is refused where longrope's long ones begin") {
  auto attention = make(longrope());
  const auto x = input(20);
  auto cache = attention->make_cache(2);
  attention->decode(x.slice(1, 0, 16), cache);
  THROWS_WITH(
      attention->decode(x.slice(1, 16, 17), cache),
      "expected texts that stay within original_context_length = 16 of rotary "
      "scaling longrope, or an empty cache, but got one of 16 tokens that grows "
      "to 17");
  CHECK(cache.lengths()[0].item<int64_t>() == 16);
  cache.reset();
  attention->decode(x.slice(1, 0, 17), cache);
  auto shorter = cache.clone();
  shorter.truncate(10);
  THROWS_WITH(
      attention->decode(x.slice(1, 10, 11), shorter),
      "expected texts that stay beyond original_context_length = 16 of rotary "
      "scaling longrope, or an empty cache, but got one of 10 tokens that grows "
      "to 11");
  CHECK_THAT(
      attention->decode(x.slice(1, 17), cache),
      IsCloseTo(attention->forward(x).slice(1, 17)));
}

TEST_CASE("The caller's own angles take the place of those of positions") {
  const auto rotary = RotaryOptions().theta(100).dim(6);
  auto attention = make(rotary);
  const int64_t T = 5;
  const auto x = input(T);
  const auto angles =
      torch::arange(T).unsqueeze(1) * torch::pow(100, -torch::arange(3) / 3.0);
  const auto cos = angles.cos();
  const auto sin = angles.sin();
  const auto expected = attention->forward(x);
  const auto given = [&](const torch::Tensor& c, const torch::Tensor& s) {
    return ForwardOptions().rotary_cos(c).rotary_sin(s);
  };
  CHECK_THAT(
      attention->forward(x, given(cos, sin)),
      IsCloseTo(expected, Tolerance(1e-5, 1e-6)));
  // The second sequence stands elsewhere.
  const auto moved = torch::stack({angles, angles + 1});
  const auto context = attention->forward(x, given(moved.cos(), moved.sin()));
  CHECK_THAT(context[0], IsCloseTo(expected[0], Tolerance(1e-5, 1e-6)));
  auto cache = attention->make_cache(2);
  const auto decoded = attention->decode(
      x,
      cache,
      DecodeOptions().rotary_cos(moved.cos()).rotary_sin(moved.sin()));
  CHECK_THAT(decoded, IsCloseTo(context));
  THROWS_WITH(
      attention->forward(x, ForwardOptions().rotary_cos(cos)),
      "expected rotary_cos and rotary_sin or neither, but got rotary_cos alone");
  const auto doubled = [](const torch::Tensor& half) {
    return torch::cat({half, half}, -1);
  };
  THROWS_WITH(
      attention->forward(x, given(doubled(cos), doubled(sin))),
      "expected a floating-point rotary_cos of shape (T, pairs) = [5, 3] or (B, "
      "T, pairs), but got Float of shape [5, 6]; of tables with each angle twice "
      "pass one half");
  THROWS_WITH(
      attention->forward(x, given(cos, sin).positions(torch::arange(T))),
      "expected positions or rotary_cos and rotary_sin, but got both");
  // Modules without rotary do not read it.
  MultiHeadAttention plain(MultiHeadAttentionOptions(8, 16, 64, 2));
  plain->to(torch::kDouble);
  CHECK_THAT(plain->forward(x, given(cos, sin)), IsCloseTo(plain->forward(x)));
}

TEST_CASE("Rotary scalings that go by length are checked") {
  const auto x = torch::randn({2, 8});
  const auto rotated = [&](const RotaryOptions& options) {
    return functional::rotary_embedding(x, torch::arange(2), options);
  };
  THROWS_WITH(
      rotated(longrope().long_factors({1.0, 2.0})),
      "rotary_embedding: expected long_factors of rotary scaling longrope that "
      "are 4 finite numbers > 0, one for each pair, but got [1, 2]");
  THROWS_WITH(rotated(longrope().short_factors({})), "expected short_factors");
  THROWS_WITH(
      rotated(dynamic().long_factors({1.0})),
      "rotary scaling dynamic has no long_factors");
  THROWS_WITH(
      rotated(dynamic().attention_factor(1.0)),
      "rotary scaling dynamic has no attention_factor");
  THROWS_WITH(
      rotated(dynamic().slow_turns(2)),
      "rotary scaling dynamic has no slow_turns");
  THROWS_WITH(
      rotated(dynamic().truncate(false)),
      "rotary scaling dynamic has no truncate");
  THROWS_WITH(rotated(dynamic().dim(2)), "expected dim > 2 and a factor >= 1");
  auto none = dynamic();
  THROWS_WITH(
      rotated(none.original_context_length(std::nullopt)),
      "expected original_context_length > 0 for rotary scaling dynamic");
}

} // namespace rotary_length_test
