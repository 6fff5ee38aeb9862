// Options of one call of `forward`: padding, masks, biases, positions.

#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

namespace forward_options_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kBatch = 3;
constexpr int64_t kTokens = 7;
constexpr int64_t kIn = 6;

using Forward =
    std::function<torch::Tensor(const torch::Tensor&, const ForwardOptions&)>;

struct Subject {
  std::string name;
  Forward forward;
};

template <typename Holder>
Subject subject(const std::string& name, Holder module) {
  module->to(torch::kDouble);
  module->eval();
  return {
      name,
      [module](const torch::Tensor& x, const ForwardOptions& call) mutable {
        return module->forward(x, call);
      }};
}

/// Every class that takes a batch.
std::vector<Subject> every_module(Kernel kernel, bool causal) {
  torch::manual_seed(3);
  const auto heads = [&](int64_t num_heads) {
    return MultiHeadAttentionOptions(kIn, 8, 20, num_heads)
        .causal(causal)
        .kernel(kernel);
  };
  const auto after = causal ? std::nullopt : std::optional<int64_t>(2);
  std::vector<Subject> subjects = {
      subject(
          "CausalAttention",
          CausalAttention(CausalAttentionOptions(kIn, 4, 20)
                              .causal(causal)
                              .kernel(kernel))),
      subject(
          "MultiHeadAttentionWrapper",
          MultiHeadAttentionWrapper(
              MultiHeadAttentionWrapperOptions(kIn, 4, 20, 3)
                  .causal(causal)
                  .kernel(kernel))),
      subject("MultiHeadAttention", MultiHeadAttention(heads(2))),
      subject(
          "MultiHeadAttention with all",
          MultiHeadAttention(heads(4)
                                 .num_kv_heads(2)
                                 .head_dim(6)
                                 .value_dim(3)
                                 .qk_norm(HeadNormOptions())
                                 .softcap(20)
                                 .window(4)
                                 .window_after(after)))};
  if (!causal) {
    subjects.push_back(subject(
        "SelfAttentionV1",
        SelfAttentionV1(SelfAttentionOptions(kIn, 4).kernel(kernel))));
    subjects.push_back(subject(
        "SelfAttentionV2",
        SelfAttentionV2(SelfAttentionOptions(kIn, 4).kernel(kernel))));
  }
  return subjects;
}

/// How many of its tokens each sequence has.
const std::vector<int64_t> kLengths = {7, 3, 5};

/// (B, T), true where there is padding, which is before or after the tokens.
torch::Tensor padding(bool left) {
  auto result = torch::zeros({kBatch, kTokens}, torch::kBool);
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto length = kLengths[static_cast<size_t>(b)];
    (left ? result[b].slice(0, 0, kTokens - length)
          : result[b].slice(0, length))
        .fill_(true);
  }
  return result;
}

torch::Tensor draw_input() {
  torch::manual_seed(5);
  return torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
}

torch::Tensor arange(int64_t n) {
  return torch::arange(n, torch::kLong);
}

/// Positions (B, T) that count the tokens which are not padding.
torch::Tensor positions_beside(const torch::Tensor& hidden) {
  return (hidden.logical_not().cumsum(-1) - 1).clamp_min(0);
}

/// Checks that each sequence gives, beside its padding of NaN, what it gives
/// alone.
void check_as_alone(
    const Forward& forward,
    const torch::Tensor& hidden,
    const ForwardOptions& call) {
  const auto clean = draw_input();
  const auto x = clean.masked_fill(
      hidden.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
  const auto together = forward(x, call);
  for (int64_t b = 0; b < kBatch; ++b) {
    CAPTURE(b);
    const auto kept = hidden[b].logical_not();
    const auto alone = forward(clean[b].index({kept}).unsqueeze(0), {})[0];
    CHECK_THAT(together[b].index({kept}), IsCloseTo(alone));
  }
}

} // namespace

TEST_CASE("Padded sequences give what they give alone") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const auto causal = GENERATE(true, false);
  for (auto& [name, forward] : every_module(kernel, causal)) {
    CAPTURE(name, kernel, causal);
    const auto right = padding(false);
    check_as_alone(forward, right, ForwardOptions().key_padding_mask(right));
    check_as_alone(
        forward, right, ForwardOptions().key_lengths(torch::tensor(kLengths)));
    check_as_alone(
        forward,
        right,
        ForwardOptions().key_lengths(torch::tensor(kLengths, torch::kUInt8)));
    const auto left = padding(true);
    check_as_alone(forward, left, ForwardOptions().key_padding_mask(left));
  }
}

TEST_CASE("Rotary and ALiBi go by the positions of a call") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto alibi = GENERATE(true, false);
  const auto causal = GENERATE(true, false);
  torch::manual_seed(4);
  auto options = MultiHeadAttentionOptions(kIn, 8, 2000, 2)
                     .causal(causal)
                     .alibi(alibi)
                     .kernel(kernel);
  if (!alibi) {
    options.rotary(RotaryOptions());
  }
  const auto [name, forward] =
      subject("MultiHeadAttention", MultiHeadAttention(options));
  const auto call = ForwardOptions();
  const auto x = draw_input();

  SECTION("which are 0, 1, ... by default") {
    CHECK_THAT(
        forward(x, ForwardOptions().positions(arange(kTokens))),
        IsCloseTo(forward(x, {})));
  }
  SECTION("of left-padded sequences, and of tokens with gaps") {
    const auto left = padding(true);
    auto holes = padding(true);
    holes[0][2].fill_(true);
    holes[0][4].fill_(true);
    for (const auto& hidden : {left, holes}) {
      check_as_alone(
          forward,
          hidden,
          ForwardOptions().key_padding_mask(hidden).positions(
              positions_beside(hidden)));
    }
  }
  SECTION("beyond any table") {
    // Only distances count, as far as float32 tells the angles apart.
    const auto far = arange(kTokens) + (int64_t{1} << 20);
    CHECK_THAT(
        forward(x, ForwardOptions().positions(far)),
        IsCloseTo(forward(x, {}), Tolerance(0.1, 0.1)));
  }
  SECTION("in the order of the caller") {
    if (!causal) {
      // Without a mask the order of the tokens has no other meaning.
      const auto order = torch::tensor({3, 0, 6, 2, 1, 5, 4});
      const auto moved =
          forward(x.index_select(1, order), ForwardOptions().positions(order));
      CHECK_THAT(moved, IsCloseTo(forward(x, {}).index_select(1, order)));
    }
  }
}

TEST_CASE("Masks and biases of a call equal the formula") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  constexpr int64_t kHeads = 2;
  torch::manual_seed(6);
  MultiHeadAttention attention(MultiHeadAttentionOptions(kIn, 8, 20, kHeads)
                                   .causal(false)
                                   .kernel(kernel));
  attention->to(torch::kDouble);
  const auto x = draw_input();
  const auto split = [&](const torch::Tensor& y) {
    return y.view({kBatch, kTokens, kHeads, 4}).transpose(1, 2);
  };
  const auto scores = torch::matmul(
                          split(attention->W_query(x)),
                          split(attention->W_key(x)).transpose(-2, -1)) /
      2;
  const auto finish = [&](const torch::Tensor& all_scores) {
    const auto weights = torch::softmax(all_scores, -1).nan_to_num(0);
    return attention->out_proj(
        torch::matmul(weights, split(attention->W_value(x)))
            .transpose(1, 2)
            .reshape({kBatch, kTokens, 8}));
  };
  const auto sizes = GENERATE(
      std::vector<int64_t>{kTokens, kTokens},
      std::vector<int64_t>{1, kTokens},
      std::vector<int64_t>{kBatch, 1, kTokens, kTokens},
      std::vector<int64_t>{1, kHeads, kTokens, kTokens},
      std::vector<int64_t>{kBatch, kHeads, kTokens, kTokens},
      std::vector<int64_t>{kBatch, 1, 1, kTokens});
  CAPTURE(kernel, sizes);
  const auto hidden = torch::rand(sizes) < 0.4;
  const auto bias = torch::randn(sizes, torch::kDouble);
  const auto padded = padding(false);
  constexpr auto kHidden = -std::numeric_limits<double>::infinity();
  CHECK_THAT(
      attention->forward(x, ForwardOptions().mask(hidden)),
      IsCloseTo(finish(scores.masked_fill(hidden, kHidden))));
  CHECK_THAT(
      attention->forward(x, ForwardOptions().bias(bias)),
      IsCloseTo(finish(scores + bias)));
  const auto all =
      ForwardOptions().mask(hidden).bias(bias).key_padding_mask(padded);
  const auto expected =
      finish((scores + bias)
                 .masked_fill(hidden, kHidden)
                 .masked_fill(padded.unsqueeze(1).unsqueeze(1), kHidden));
  CHECK_THAT(attention->forward(x, all), IsCloseTo(expected));
  const auto [context, weights] = attention->forward_with_weights(x, all);
  CHECK_THAT(context, IsCloseTo(expected));
  CHECK(
      weights.masked_select(padded.unsqueeze(1).unsqueeze(1).expand_as(weights))
          .eq(0)
          .all()
          .item<bool>());
}

TEST_CASE("Masks of a wrapper go to its heads") {
  // So few tokens that the heads are computed one by one, and so many that
  // they are computed together.
  const int64_t T = GENERATE(9, 130);
  torch::manual_seed(7);
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(kIn, 4, T, 2).causal(false));
  wrapper->to(torch::kDouble);
  const auto x = torch::randn({2, T, kIn}, torch::kDouble);
  const auto mask = torch::rand({2, 2, T, T}) < 0.3;
  const auto bias = torch::randn({1, 2, T, T}, torch::kDouble);
  const auto together =
      wrapper->forward(x, ForwardOptions().mask(mask).bias(bias));
  for (int64_t h = 0; h < 2; ++h) {
    auto& head =
        *wrapper->heads->ptr(static_cast<size_t>(h))->as<CausalAttentionImpl>();
    const auto alone = head.forward(
        x, ForwardOptions().mask(mask.select(1, h)).bias(bias.select(1, h)));
    CHECK_THAT(together.narrow(-1, 4 * h, 4), IsCloseTo(alone));
  }
}

TEST_CASE("Padding takes part in no gradient") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto hidden = padding(false);
  for (auto& [name, forward] : every_module(kernel, true)) {
    CAPTURE(name, kernel);
    const auto x = draw_input().requires_grad_();
    const auto context = forward(x, ForwardOptions().key_padding_mask(hidden));
    const auto kept = context.masked_fill(hidden.unsqueeze(-1), 0);
    const auto gradient = torch::autograd::grad({kept.square().sum()}, {x})[0];
    const auto of_padding = gradient.masked_select(hidden.unsqueeze(-1));
    CHECK(of_padding.eq(0).all().item<bool>());
    CHECK(gradient.isfinite().all().item<bool>());
    CHECK(gradient.norm().item<double>() > 0);
  }
}

TEST_CASE("forward takes its options or leaves them in containers") {
  torch::manual_seed(8);
  MultiHeadAttention attention(kIn, kIn, 20, 0.0, 2);
  const auto x = draw_input().to(torch::kFloat);
  const auto hidden = padding(false);
  const auto call = ForwardOptions().key_padding_mask(hidden);
  torch::nn::Sequential model(attention, torch::nn::ReLU());
  CHECK_THAT(model->forward(x), IsEqualTo(torch::relu(attention(x))));
  torch::nn::AnyModule any(attention);
  CHECK_THAT(any.forward(x), IsEqualTo(attention(x)));
  CHECK_THAT(any.forward(x, call), IsEqualTo(attention(x, call)));
  CHECK_FALSE(torch::equal(attention(x), attention(x, call)));
}

TEST_CASE("Arguments of a call that do not fit are refused by name") {
  MultiHeadAttention attention(kIn, 8, 20, 0.0, 2);
  CausalAttention single(kIn, 8, 20, 0.0);
  SelfAttentionV2 unbatched(kIn, 8);
  const auto x = draw_input().to(torch::kFloat);
  const auto refused = [&](const ForwardOptions& call, const char* text) {
    THROWS_WITH(attention->forward(x, call), text);
    THROWS_WITH(attention->forward_with_weights(x, call), text);
  };
  refused(
      ForwardOptions().mask(
          torch::ones({kBatch, kTokens, kTokens}, torch::kBool)),
      "MultiHeadAttention: expected a mask that broadcasts to the scores (B, "
      "H, T, S) = [3, 2, 7, 7], of shape (T, S) or with all 4 dimensions, but "
      "got [3, 7, 7]; (B, T, S) needs unsqueeze(1)");
  refused(
      ForwardOptions().mask(torch::ones({kTokens, kTokens})),
      "expected a bool mask (true hides), but got Float; pass what is to be "
      "added to the scores as `bias`");
  refused(
      ForwardOptions().bias(torch::ones({2, kTokens})),
      "MultiHeadAttention: expected a bias that broadcasts");
  refused(
      ForwardOptions().key_padding_mask(
          torch::ones({kBatch, kTokens}, torch::kLong)),
      "MultiHeadAttention: expected a bool key_padding_mask (true hides), but "
      "got Long; of an attention mask, 1 for tokens and 0 for padding, pass "
      "attention_mask.eq(0)");
  refused(
      ForwardOptions().key_padding_mask(
          torch::ones({kTokens, kBatch}, torch::kBool)),
      "expected a key_padding_mask of shape (B, S) = [3, 7], but got [7, 3]");
  refused(
      ForwardOptions().key_lengths(torch::ones({2}, torch::kLong)),
      "expected key_lengths of an integer dtype and shape (B) = [3]");
  // Nothing goes by them: layers of a model may all get the same.
  for (const auto& output :
       {single->forward(x, ForwardOptions().positions(arange(kTokens))),
        attention->forward(x, ForwardOptions().positions(arange(kTokens)))}) {
    CHECK(output.isfinite().all().item<bool>());
  }
  THROWS_WITH(
      single->forward(
          x, ForwardOptions().mask(torch::ones({2, kTokens}, torch::kBool))),
      "CausalAttention: expected a mask that broadcasts to the scores (B, T, "
      "S)");
  THROWS_WITH(
      unbatched->forward(
          x[0], ForwardOptions().key_lengths(torch::ones({1}, torch::kLong))),
      "SelfAttentionV2: expected key_lengths beside input of shape (B, T, "
      "d_in)");
  MultiHeadAttention rotary(
      MultiHeadAttentionOptions(kIn, 8, 20, 2).rotary(RotaryOptions()));
  THROWS_WITH(
      rotary->forward(x, ForwardOptions().positions(arange(3))),
      "MultiHeadAttention: expected positions of an integer dtype and shape "
      "(T) = [7] or (B, T) = [3, 7], but got Long of shape [3]");
  THROWS_WITH(
      rotary->forward(x, ForwardOptions().positions(arange(kTokens) - 1)),
      "MultiHeadAttention: expected positions >= 0, but got -1");
  CHECK_THAT(
      unbatched->forward(
          x[0],
          ForwardOptions().key_padding_mask(
              torch::zeros({kTokens}, torch::kBool))),
      IsCloseTo(unbatched(x[0])));
}

TEST_CASE("Left-padded prompts decode as they do alone") {
  const auto rotary = GENERATE(true, false);
  torch::manual_seed(9);
  auto options = MultiHeadAttentionOptions(kIn, 8, 40, 2).value_dim(5);
  if (rotary) {
    options.rotary(RotaryOptions());
  }
  MultiHeadAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  const torch::NoGradGuard no_grad;
  const auto left = padding(true);
  const auto x = draw_input();
  const auto padded = x.masked_fill(left.unsqueeze(-1), std::nan(""));
  auto cache = attention->make_cache(kBatch);
  const auto prompts = attention->decode(
      padded, cache, DecodeOptions(torch::tensor(kLengths)).left_padded(true));
  const auto next = torch::randn({kBatch, 2, kIn}, torch::kDouble);
  const auto steps = attention->decode(next, cache);
  CHECK_THAT(cache.lengths(), IsEqualTo(torch::tensor(kLengths) + 2));
  for (int64_t b = 0; b < kBatch; ++b) {
    CAPTURE(b, rotary);
    const auto length = kLengths[static_cast<size_t>(b)];
    const auto text =
        torch::cat({x[b].slice(0, kTokens - length), next[b]}).unsqueeze(0);
    const auto alone = attention(text)[0];
    CHECK_THAT(
        prompts[b].slice(0, kTokens - length),
        IsCloseTo(alone.slice(0, 0, length)));
    CHECK_THAT(steps[b], IsCloseTo(alone.slice(0, length)));
  }
}

} // namespace forward_options_test
