// Random rules by number (scale, softcap, causal, windows, chunks) on each
// module that has `RuleOptions`.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>

namespace every_rule_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kTokens = 11;
constexpr int kRules = 30;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  int64_t number(int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(engine_);
  }

  bool chance(int64_t one_in) {
    return number(1, one_in) == 1;
  }

 private:
  std::mt19937 engine_;
};

ScoreRule draw_rule(Random& random) {
  ScoreRule rule;
  rule.causal = random.chance(2);
  if (random.chance(3)) {
    rule.chunk = random.number(1, kTokens + 2);
  } else if (random.chance(2)) {
    rule.window = random.number(1, kTokens + 2);
  }
  if (!rule.causal && !rule.chunk && (rule.window || random.chance(2))) {
    rule.window_after = random.number(0, kTokens + 2);
  }
  if (random.chance(2)) {
    rule.scale = 0.1 * static_cast<double>(random.number(1, 20));
  }
  if (random.chance(2)) {
    rule.softcap = 0.5 * static_cast<double>(random.number(1, 8));
  }
  return rule;
}

std::string text_of(const ScoreRule& rule) {
  std::ostringstream text;
  const auto add = [&](const char* name, const auto& value) {
    text << name << ' ' << (value ? std::to_string(*value) : "none") << ", ";
  };
  add("scale", rule.scale);
  add("softcap", rule.softcap);
  add("window", rule.window);
  add("window_after", rule.window_after);
  add("chunk", rule.chunk);
  text << (rule.causal ? "causal" : "not causal");
  return text.str();
}

/// Returns the keys that a rule hides, pair by pair: bool (T, T).
torch::Tensor hidden_by(const ScoreRule& rule) {
  auto hidden = torch::zeros({kTokens, kTokens}, torch::kBool);
  for (int64_t query = 0; query < kTokens; ++query) {
    for (int64_t key = 0; key < kTokens; ++key) {
      const bool hides = (rule.causal && key > query) ||
          (rule.window && query - key >= *rule.window) ||
          (rule.window_after && key - query > *rule.window_after) ||
          (rule.chunk && key / *rule.chunk != query / *rule.chunk);
      hidden[query][key] = hides;
    }
  }
  return hidden;
}

/// Makes a module of `options`, with the same parameters for all rules.
template <typename Module, typename Options>
Module make(const Options& options) {
  torch::manual_seed(1);
  Module attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

torch::Tensor draw_input() {
  torch::manual_seed(2);
  return 3 * torch::randn({2, kTokens, 8}, torch::kDouble);
}

/// Returns the output of a module that has no rule but the scale; the call
/// hides the keys, and bounds the scores by a function.
template <typename Module, typename Options>
torch::Tensor by_call(Options options, const ScoreRule& rule) {
  ScoreRule scale;
  scale.scale = rule.scale;
  auto call = ForwardOptions().mask(hidden_by(rule));
  if (rule.softcap) {
    call.scores([cap = *rule.softcap](const torch::Tensor& scores) {
      return torch::tanh(scores / cap) * cap;
    });
  }
  return make<Module>(options.rule(scale))(draw_input(), call);
}

template <typename Module, typename Options>
void check_forward(const Options& options) {
  Random random(35);
  for (int i = 0; i < kRules; ++i) {
    const auto rule = draw_rule(random);
    INFO(text_of(rule));
    const auto expected = by_call<Module>(options, rule);
    for (const auto kernel :
         {Kernel::kAuto, Kernel::kFused, Kernel::kReference}) {
      CAPTURE(kernel);
      auto attention = make<Module>(Options(options).rule(rule).kernel(kernel));
      CHECK_THAT(attention(draw_input()), IsCloseTo(expected));
    }
  }
}

template <typename Module, typename Options>
void check_decode(const Options& options) {
  Random random(36);
  const auto x = draw_input();
  for (int i = 0; i < kRules; ++i) {
    auto rule = draw_rule(random);
    rule.causal = true;
    rule.window_after = std::nullopt;
    INFO(text_of(rule));
    auto attention = make<Module>(Options(options).rule(rule));
    const torch::NoGradGuard no_grad;
    const auto expected = attention(x);
    auto cache = attention->make_cache(2);
    for (int64_t begin = 0, end = 0; begin < kTokens; begin = end) {
      end = std::min(kTokens, begin + random.number(1, 4));
      CHECK_THAT(
          attention->decode(x.slice(1, begin, end), cache),
          IsCloseTo(expected.slice(1, begin, end)));
    }
  }
}

/// Checks chunks of tokens whose places are `places`, int64 (2, T), against
/// masks. `call` has the places, or padding that they follow from; hidden
/// tokens are not compared.
template <typename Module, typename Options>
void check_places(
    const Options& options,
    const ForwardOptions& call,
    const torch::Tensor& places,
    int64_t num_score_dims) {
  const auto x = draw_input();
  const auto seen = places.ge(0);
  auto rule = ScoreRule::make_causal();
  const auto own_rule = rule;
  for (const int64_t chunk : {1, 2, 4, 30}) {
    CAPTURE(chunk, num_score_dims);
    auto mask = torch::zeros({2, kTokens, kTokens}, torch::kBool);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t query = 0; query < kTokens; ++query) {
        for (int64_t key = 0; key < kTokens; ++key) {
          const auto at = places[b][query].item<int64_t>();
          const auto of_key = places[b][key].item<int64_t>();
          mask[b][query][key] =
              of_key < 0 || (at >= 0 && at / chunk != of_key / chunk);
        }
      }
    }
    rule.chunk = chunk;
    auto masked = make<Module>(Options(options).rule(own_rule));
    auto chunked = make<Module>(Options(options).rule(rule));
    const auto expected = masked(
        x,
        ForwardOptions(call).key_padding_mask({}).mask(
            num_score_dims == 4 ? mask.unsqueeze(1) : mask));
    CHECK_THAT(
        chunked(x, call).index({seen}), IsCloseTo(expected.index({seen})));
    const auto weighted = std::get<0>(chunked->forward_with_weights(x, call));
    CHECK_THAT(weighted.index({seen}), IsCloseTo(expected.index({seen})));
  }
}

template <typename Module, typename Options>
void check_padding_and_positions(const Options& options, int64_t dims = 4) {
  auto padding = torch::zeros({2, kTokens}, torch::kBool);
  padding[0].slice(0, 0, 3).fill_(true);
  auto places = torch::arange(kTokens).repeat({2, 1});
  places[0] -= 3;
  check_places<Module>(
      options, ForwardOptions().key_padding_mask(padding), places, dims);
  auto positions = torch::arange(kTokens).repeat({2, 1}) + 1;
  positions[1] += 4;
  check_places<Module>(
      options, ForwardOptions().positions(positions), positions, dims);
}

MultiHeadAttentionOptions many_heads() {
  return MultiHeadAttentionOptions(8, 12, 16, 4).num_kv_heads(2);
}

LatentAttentionOptions latent(int64_t kv_rank) {
  return LatentAttentionOptions(8, 6, 16, 3)
      .kv_rank(kv_rank)
      .nope_dim(4)
      .rope_dim(4)
      .value_dim(5);
}

} // namespace

TEST_CASE("Every rule of CausalAttention") {
  check_forward<CausalAttention>(CausalAttentionOptions(8, 5, 16));
}

TEST_CASE("Every rule of MultiHeadAttentionWrapper") {
  check_forward<MultiHeadAttentionWrapper>(
      MultiHeadAttentionWrapperOptions(8, 3, 16, 4));
}

TEST_CASE("Every rule of MultiHeadAttention") {
  check_forward<MultiHeadAttention>(many_heads());
  check_decode<MultiHeadAttention>(many_heads());
}

TEST_CASE("Every rule of LatentAttention") {
  const int64_t kv_rank = GENERATE(3, 64);
  check_forward<LatentAttention>(latent(kv_rank));
  check_decode<LatentAttention>(latent(kv_rank));
}

TEST_CASE("Chunks begin after padding and go by positions in every module") {
  check_padding_and_positions<CausalAttention>(
      CausalAttentionOptions(8, 5, 30), 3);
  check_padding_and_positions<MultiHeadAttentionWrapper>(
      MultiHeadAttentionWrapperOptions(8, 3, 30, 4));
  check_padding_and_positions<MultiHeadAttention>(
      MultiHeadAttentionOptions(8, 12, 30, 4));
  check_padding_and_positions<LatentAttention>(
      LatentAttentionOptions(8, 6, 30, 3)
          .kv_rank(3)
          .nope_dim(4)
          .rope_dim(4)
          .value_dim(5));
}

TEST_CASE("A wrong number that is set later is refused by small modules, too") {
  MultiHeadAttention attention(MultiHeadAttentionOptions(4, 4, 8, 2));
  for (const int64_t window : {0, -5}) {
    attention->options.window(window);
    THROWS_WITH(
        attention(torch::ones({1, 2, 4})), "expected a window > 0, but got");
  }
  CrossAttention cross(CrossAttentionOptions(8, 8, 8, 2));
  cross->options.rule(ScoreRule::make_causal());
  THROWS_WITH(
      cross(torch::ones({1, 2, 8}), torch::ones({1, 3, 8})),
      "expected a rule that hides no keys");
}

TEST_CASE("Rules without positions have no causal, windows and chunks") {
  ScoreRule rule;
  rule.softcap = 2;
  auto cross =
      make<CrossAttention>(CrossAttentionOptions(8, 8, 8, 2).rule(rule));
  auto self = make<SelfAttentionV2>(SelfAttentionOptions(8, 3).rule(rule));
  const auto bound = ForwardOptions().scores(
      [](const torch::Tensor& scores) { return 2 * torch::tanh(scores / 2); });
  const auto x = draw_input();
  CHECK_THAT(
      cross(x, x),
      IsCloseTo(make<CrossAttention>(CrossAttentionOptions(8, 8, 8, 2))(
          x, x, bound)));
  CHECK_THAT(
      self(x),
      IsCloseTo(make<SelfAttentionV2>(SelfAttentionOptions(8, 3))(x, bound)));
  rule.chunk = 2;
  THROWS_WITH(
      CrossAttention(CrossAttentionOptions(8, 8, 8, 2).rule(rule)),
      "CrossAttention: expected a rule that hides no keys by their positions");
  THROWS_WITH(
      SelfAttentionV1(SelfAttentionOptions(8, 3).rule(rule)),
      "SelfAttentionV1: expected a rule that hides no keys by their positions");
}

TEST_CASE("A wrong number of a rule is refused by every module") {
  ScoreRule rule;
  rule.softcap = 0;
  const char* expected = "expected a softcap in [1e-6, 1e6], but got 0";
  THROWS_WITH(
      CausalAttention(CausalAttentionOptions(8, 5, 16).rule(rule)), expected);
  THROWS_WITH(
      MultiHeadAttentionWrapper(
          MultiHeadAttentionWrapperOptions(8, 3, 16, 4).rule(rule)),
      expected);
  THROWS_WITH(MultiHeadAttention(many_heads().rule(rule)), expected);
  THROWS_WITH(LatentAttention(latent(3).rule(rule)), expected);
  THROWS_WITH(
      CrossAttention(CrossAttentionOptions(8, 8, 8, 2).rule(rule)), expected);
  THROWS_WITH(SelfAttentionV2(SelfAttentionOptions(8, 3).rule(rule)), expected);
}

} // namespace every_rule_test
