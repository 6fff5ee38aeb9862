// The caller's own function, which changes the scores before the softmax.

#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace score_function_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using torch::indexing::Slice;

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 7;
constexpr int64_t kIn = 6;
constexpr int64_t kHeads = 2;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// A class that takes `ForwardOptions`, as functions of them.
struct Subject {
  std::string name;
  /// The sizes of its scores.
  std::vector<int64_t> sizes;
  std::function<torch::Tensor(const ForwardOptions&)> forward;
  std::function<std::tuple<torch::Tensor, torch::Tensor>(const ForwardOptions&)>
      with_weights;
};

template <typename Holder, typename... Inputs>
Subject subject(
    const std::string& name,
    const std::vector<int64_t>& sizes,
    Holder module,
    const Inputs&... inputs) {
  module->to(torch::kDouble);
  module->eval();
  return {
      name,
      sizes,
      [=](const ForwardOptions& call) mutable {
        return module->forward(inputs..., call);
      },
      [=](const ForwardOptions& call) mutable {
        return module->forward_with_weights(inputs..., call);
      }};
}

LatentAttentionOptions latent_options() {
  return LatentAttentionOptions(kIn, 8, 20, kHeads)
      .kv_rank(6)
      .nope_dim(4)
      .rope_dim(2)
      .value_dim(4);
}

MultiHeadAttentionOptions options_of_heads() {
  return MultiHeadAttentionOptions(kIn, 8, 20, 2 * kHeads)
      .num_kv_heads(kHeads)
      .value_dim(3)
      .rotary(RotaryOptions())
      .softcap(5)
      .sinks(true);
}

std::vector<Subject> every_module() {
  torch::manual_seed(3);
  const auto x = torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
  const auto context = torch::randn({kBatch, 5, 3}, torch::kDouble);
  const std::vector<int64_t> one = {kBatch, kTokens, kTokens};
  const std::vector<int64_t> all = {kBatch, kHeads, kTokens, kTokens};
  return {
      subject(
          "SelfAttentionV1",
          one,
          SelfAttentionV1(SelfAttentionOptions(kIn, 4)),
          x),
      subject(
          "SelfAttentionV2 without a batch",
          {kTokens, kTokens},
          SelfAttentionV2(SelfAttentionOptions(kIn, 4)),
          x[0]),
      subject("CausalAttention", one, CausalAttention(kIn, 4, 20, 0.0), x),
      subject(
          "MultiHeadAttentionWrapper",
          all,
          MultiHeadAttentionWrapper(kIn, 4, 20, 0.0, kHeads),
          x),
      subject(
          "MultiHeadAttention",
          all,
          MultiHeadAttention(kIn, 8, 20, 0.0, kHeads),
          x),
      subject(
          "MultiHeadAttention with more",
          {kBatch, 2 * kHeads, kTokens, kTokens},
          MultiHeadAttention(options_of_heads()),
          x),
      subject(
          "CrossAttention",
          {kBatch, kHeads, kTokens, 5},
          CrossAttention(kIn, 3, 8, kHeads),
          x,
          context),
      subject("LatentAttention", all, LatentAttention(latent_options()), x)};
}

/// Compresses scores, as no option beside another softcap does.
torch::Tensor compressed(const torch::Tensor& scores) {
  return torch::asinh(2 * scores);
}

} // namespace

TEST_CASE("Every module gives its scores to the function of a call") {
  for (const auto& module : every_module()) {
    CAPTURE(module.name);
    const auto bias = torch::randn(module.sizes, torch::kDouble);
    int64_t calls = 0;
    const auto add = [&](const torch::Tensor& scores) {
      ++calls;
      CHECK_THAT(scores, HasShape(module.sizes));
      CHECK(scores.isfinite().all().item<bool>());
      return scores + bias;
    };
    const auto call = ForwardOptions().scores(add);
    const auto expected = module.with_weights(ForwardOptions().bias(bias));
    CHECK_THAT(module.forward(call), IsCloseTo(std::get<0>(expected)));
    const auto [context, weights] = module.with_weights(call);
    CHECK_THAT(context, IsCloseTo(std::get<0>(expected)));
    CHECK_THAT(weights, IsCloseTo(std::get<1>(expected)));
    CHECK(calls == 2);
  }
}

TEST_CASE("The function gets scores after bias and masks, before sinks") {
  torch::manual_seed(4);
  const auto query = torch::randn({kBatch, kHeads, 3, 4}, torch::kDouble);
  const auto key = torch::randn({kBatch, kHeads, 5, 4}, torch::kDouble);
  const auto bias = torch::randn({3, 5}, torch::kDouble);
  const auto mask = torch::rand({kBatch, 1, 3, 5}) < 0.3;
  const auto sinks = torch::randn({kHeads}, torch::kDouble);
  const auto causal = F::causal_mask(3, 5);
  const auto scores = (torch::matmul(query, key.mT()) / 2 + bias);
  torch::Tensor seen;
  const auto options = F::ScaledDotProductAttentionFuncOptions()
                           .causal(true)
                           .bias(bias)
                           .mask(mask)
                           .sinks(sinks)
                           .scores([&](const torch::Tensor& given) {
                             seen = given;
                             return compressed(given);
                           });
  const auto hidden = mask.logical_or(causal);
  const auto column = sinks.view({-1, 1, 1}).expand({kBatch, kHeads, 3, 1});
  const auto expected =
      torch::softmax(
          torch::cat(
              {compressed(scores).masked_fill(hidden, kHidden), column}, -1),
          -1)
          .slice(-1, 0, 5);
  const auto weights = std::get<1>(
      F::scaled_dot_product_attention_with_weights(query, key, key, options));
  CHECK_THAT(weights, IsCloseTo(expected));
  CHECK_THAT(seen, IsCloseTo(scores.masked_fill(hidden, -1e30)));
  CHECK_THAT(
      F::attention_weights(torch::matmul(query, key.mT()), 4, options),
      IsCloseTo(expected));
}

TEST_CASE("What the function hides is hidden, and what is hidden stays so") {
  torch::manual_seed(5);
  MultiHeadAttention attention(kIn, 8, 20, 0.0, kHeads);
  attention->eval();
  const auto x = torch::randn({kBatch, kTokens, kIn});
  const auto weights_by = [&](const ScoreFunction& function) {
    return std::get<1>(
        attention->forward_with_weights(x, ForwardOptions().scores(function)));
  };
  const auto later = F::causal_mask(kTokens, kTokens);
  CHECK_THAT(
      weights_by([](const auto& scores) { return torch::zeros_like(scores); }),
      IsCloseTo(weights_by(
          [](const auto& scores) { return scores.mul(0).clamp(-1, 0); })));
  CHECK(weights_by([](const auto& scores) { return -scores; })
            .masked_select(later)
            .eq(0)
            .all()
            .item<bool>());
  // No key at all: zeros.
  CHECK_THAT(
      weights_by(
          [](const auto& scores) { return torch::full_like(scores, kHidden); }),
      IsEqualTo(torch::zeros({kBatch, kHeads, kTokens, kTokens})));
  const auto two = weights_by([](const auto& scores) {
    const auto least = std::get<0>(scores.topk(2)).slice(-1, 1);
    return scores.masked_fill(scores < least, kHidden);
  });
  CHECK_THAT(
      two.gt(0).sum(-1)[0][0],
      IsEqualTo(torch::tensor({1, 2, 2, 2, 2, 2, 2}, torch::kLong)));
}

TEST_CASE("Gradients go through the function, and into what it holds") {
  torch::manual_seed(6);
  MultiHeadAttention attention(options_of_heads());
  attention->to(torch::kDouble);
  auto x = torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
  // A bias of each head, and mixing heads: 0 times what causal hides.
  auto factor = torch::rand({2 * kHeads, 1, 1}, torch::kDouble) + 0.5;
  auto mixed = torch::randn({2 * kHeads, 2 * kHeads}, torch::kDouble);
  const auto padding = torch::rand({kBatch, kTokens}) < 0.2;
  const auto loss = [&] {
    const auto call = ForwardOptions().key_padding_mask(padding).scores(
        [&](const torch::Tensor& scores) {
          const auto both = torch::einsum("gh,bhts->bgts", {mixed, scores});
          return both * factor;
        });
    return attention(x, call).square().sum();
  };
  for (auto* input : {&x, &factor, &mixed}) {
    input->requires_grad_();
    const auto gradient = torch::autograd::grad({loss()}, {*input})[0];
    input->requires_grad_(false);
    CHECK(gradient.isfinite().all().item<bool>());
    const torch::NoGradGuard no_grad;
    constexpr double kStep = 1e-6;
    const auto direction = torch::randn_like(*input);
    const auto at = input->clone();
    input->copy_(at + kStep * direction);
    const auto high = loss();
    input->copy_(at - kStep * direction);
    const auto low = loss();
    input->copy_(at);
    CHECK_THAT(
        (high - low) / (2 * kStep),
        IsCloseTo((gradient * direction).sum(), Tolerance(1e-5, 1e-7)));
  }
}

TEST_CASE("Steps of decode give what forward gives under the function") {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
  const auto compare = [&](auto module) {
    module->to(torch::kDouble);
    module->eval();
    const auto expected =
        module->forward(x, ForwardOptions().scores(compressed));
    CHECK_FALSE(torch::allclose(expected, module->forward(x)));
    auto cache = module->make_cache(kBatch);
    const auto call = DecodeOptions().scores(compressed);
    std::vector<torch::Tensor> steps = {
        module->decode(x.slice(1, 0, 4), cache, call)};
    for (int64_t t = 4; t < kTokens; ++t) {
      steps.push_back(module->decode(x.narrow(1, t, 1), cache, call));
    }
    CHECK_THAT(torch::cat(steps, 1), IsCloseTo(expected));
    const auto before = cache.lengths();
    THROWS_WITH(
        module->decode(
            x, cache, DecodeOptions().left_padded(true).scores(compressed)),
        "expected a function `scores` beside a cache that keeps all tokens, "
        "and tokens that are not left_padded");
    CHECK_THAT(cache.lengths(), IsEqualTo(before));
  };
  compare(MultiHeadAttention(options_of_heads()));
  compare(LatentAttention(latent_options()));
  CrossAttention cross(kIn, 3, 8, kHeads);
  cross->to(torch::kDouble);
  const auto context = torch::randn({kBatch, 5, 3}, torch::kDouble);
  const auto call = ForwardOptions().scores(compressed);
  CHECK_THAT(
      cross->decode(x, cross->make_cache(context), call),
      IsCloseTo(cross(x, context, call)));
}

TEST_CASE("The function is called for each packed sequence") {
  torch::manual_seed(8);
  MultiHeadAttention attention(kIn, 8, 20, 0.0, kHeads);
  const auto tokens = torch::randn({9, kIn});
  std::vector<int64_t> lengths;
  const auto packed = attention(
      tokens,
      ForwardOptions()
          .cu_seqlens(torch::tensor({0, 4, 9}))
          .scores([&](const torch::Tensor& scores) {
            lengths.push_back(scores.size(-1));
            return compressed(scores);
          }));
  CHECK(lengths == std::vector<int64_t>{4, 5});
  const auto call = ForwardOptions().scores(compressed);
  CHECK_THAT(
      packed,
      IsCloseTo(torch::cat(
          {attention(tokens.slice(0, 0, 4).unsqueeze(0), call)[0],
           attention(tokens.slice(0, 4).unsqueeze(0), call)[0]})));
}

TEST_CASE("Padding of NaN stays hidden beside a function") {
  torch::manual_seed(9);
  MultiHeadAttention attention(options_of_heads());
  const auto x = torch::randn({kBatch, kTokens, kIn});
  auto padding = torch::zeros({kBatch, kTokens}, torch::kBool);
  padding[0].slice(0, 5).fill_(true);
  padding[1].slice(0, 0, 2).fill_(true);
  const auto call =
      ForwardOptions().key_padding_mask(padding).scores(compressed);
  const auto output =
      attention(x.masked_fill(padding.unsqueeze(-1), std::nan("")), call);
  const auto kept = padding.logical_not();
  CHECK_THAT(output.index({kept}), IsCloseTo(attention(x, call).index({kept})));
}

TEST_CASE("Values that are not finite reach their queries alone") {
  torch::manual_seed(13);
  const auto leaf = [](torch::IntArrayRef sizes) {
    return torch::randn(sizes).requires_grad_();
  };
  const auto query = leaf({2, 4, 7, 8});
  const auto key = leaf({2, 2, 7, 8});
  const auto value = torch::randn({2, 2, 7, 5});
  auto unusual = value.clone();
  unusual.index_put_({0, 0, 5, 1}, std::nan(""));
  unusual.index_put_({0, 0, 6, 1}, -INFINITY);
  unusual.index_put_({0, 0, 3, 2}, INFINITY);
  unusual.requires_grad_();
  const auto options = F::ScaledDotProductAttentionFuncOptions()
                           .enable_gqa(true)
                           .causal(true)
                           .scores(compressed);
  const auto output =
      F::scaled_dot_product_attention(query, key, unusual, options);
  auto expected =
      F::scaled_dot_product_attention(query, key, value, options).detach();
  // The first two heads share these keys.
  const auto heads = Slice(0, 2);
  expected.index_put_({0, heads, Slice(3), 2}, INFINITY);
  expected.index_put_({0, heads, Slice(5), 1}, std::nan(""));
  CHECK(torch::allclose(output, expected, 1e-5, 1e-6, /*equal_nan=*/true));
  const auto gradients = torch::autograd::grad(
      {output.slice(2, 0, 3).sum()}, {query, key, unusual});
  const auto finite = value.clone().requires_grad_();
  const auto wanted = torch::autograd::grad(
      {F::scaled_dot_product_attention(query, key, finite, options)
           .slice(2, 0, 3)
           .sum()},
      {query, key, finite});
  // Later queries see them.
  CHECK_THAT(gradients[0].slice(2, 0, 3), IsCloseTo(wanted[0].slice(2, 0, 3)));
  CHECK_THAT(gradients[2], IsCloseTo(wanted[2]));
}

TEST_CASE("The function gets as many dimensions as the query has") {
  torch::manual_seed(10);
  // Heads that share keys, without a batch.
  const auto query = torch::randn({4, 3, 8});
  const auto key = torch::randn({2, 5, 8});
  std::vector<int64_t> sizes;
  const auto output = F::scaled_dot_product_attention(
      query,
      key,
      key,
      F::ScaledDotProductAttentionFuncOptions().enable_gqa(true).scores(
          [&](const torch::Tensor& scores) {
            sizes = scores.sizes().vec();
            return scores;
          }));
  CHECK(sizes == std::vector<int64_t>{4, 3, 5});
  CHECK_THAT(
      output,
      IsCloseTo(F::scaled_dot_product_attention(
          query,
          key,
          key,
          F::ScaledDotProductAttentionFuncOptions().enable_gqa(true))));
}

TEST_CASE("Functions that give or get the wrong are refused") {
  const auto x = torch::randn({kBatch, kTokens, kIn});
  MultiHeadAttention attention(kIn, 8, 20, 0.0, kHeads);
  const auto refused = [&](const ScoreFunction& function, const char* text) {
    THROWS_WITH(attention(x, ForwardOptions().scores(function)), text);
    THROWS_WITH(
        attention->forward_with_weights(x, ForwardOptions().scores(function)),
        text);
  };
  refused(
      [](const torch::Tensor& scores) { return scores.sum(-1); },
      "scaled_dot_product_attention: expected `scores` to give what it gets, "
      "Float of shape [2, 2, 7, 7] on cpu, but got Float of shape [2, 2, 7] on "
      "cpu");
  refused(
      [](const torch::Tensor& scores) { return scores.to(torch::kDouble); },
      "but got Double of shape [2, 2, 7, 7] on cpu");
  refused(
      [](const torch::Tensor& scores) {
        return scores.to(torch::Device(torch::kMeta));
      },
      "on cpu, but got Float of shape [2, 2, 7, 7] on meta");
  refused(
      [](const torch::Tensor&) { return torch::Tensor(); },
      "the tensor that `scores` gave is undefined");
  refused(
      [](const torch::Tensor& scores) { return scores.to_sparse(); },
      "tensor that `scores` gave");
  const auto call = ForwardOptions().scores(compressed);
  attention->options.kernel(Kernel::kFused);
  THROWS_WITH(
      attention(x, call),
      "Kernel::kFused never forms the scores, which a function is to change; "
      "use Kernel::kReference or Kernel::kAuto");
  MultiHeadAttentionWrapper wrapper(kIn, 4, 20, 0.0, kHeads);
  wrapper->heads->ptr(0)->as<CausalAttentionImpl>()->options.scale(3);
  THROWS_WITH(
      wrapper(x, call),
      "MultiHeadAttentionWrapper: expected heads that are alike beside a "
      "function `scores`");
}

} // namespace score_function_test
