// Heads of sizes of their own, biases one by one, norms of queries and keys, a
// gate behind the heads.

#include <support/close.h>
#include <support/test.h>

namespace heads_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 5;
constexpr int64_t kIn = 6;
constexpr int64_t kOut = 10;
constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 3;
constexpr int64_t kValueDim = 5;

MultiHeadAttentionOptions options_of_sizes() {
  return MultiHeadAttentionOptions(kIn, kOut, 20, kHeads)
      .num_kv_heads(kKvHeads)
      .head_dim(kHeadDim)
      .value_dim(kValueDim);
}

MultiHeadAttention make(const MultiHeadAttentionOptions& options) {
  torch::manual_seed(11);
  MultiHeadAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  const torch::NoGradGuard no_grad;
  for (auto& item : attention->named_parameters()) {
    if (item.key().find("_norm") != std::string::npos) {
      item.value().uniform_(0.5, 1.5);
    }
  }
  return attention;
}

torch::Tensor draw_input() {
  torch::manual_seed(12);
  return torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
}

std::vector<std::string> keys_of(const MultiHeadAttention& attention) {
  return attention->named_parameters().keys();
}

/// x over the root of its mean square over the last dimension.
torch::Tensor rms(const torch::Tensor& x, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt();
}

/// x less its mean, over its standard deviation.
torch::Tensor layer(const torch::Tensor& x, double eps) {
  const auto centred = x - x.mean(-1, true);
  return centred / (centred.pow(2).mean(-1, true) + eps).sqrt();
}

/// Causal attention of projections, head by head.
torch::Tensor by_heads(
    const MultiHeadAttention& attention,
    const torch::Tensor& queries,
    const torch::Tensor& keys,
    const torch::Tensor& values) {
  std::vector<torch::Tensor> contexts;
  const auto hidden = functional::causal_mask(kTokens, kTokens);
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto g = h / (kHeads / kKvHeads);
    const auto of = [](const torch::Tensor& x, int64_t head, int64_t size) {
      return x.narrow(-1, head * size, size);
    };
    const auto scores =
        torch::matmul(
            of(queries, h, kHeadDim), of(keys, g, kHeadDim).transpose(-2, -1)) /
        std::sqrt(static_cast<double>(kHeadDim));
    const auto weights = torch::softmax(
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
        -1);
    contexts.push_back(torch::matmul(weights, of(values, g, kValueDim)));
  }
  auto out_proj = attention->out_proj;
  return out_proj(torch::cat(contexts, -1));
}

} // namespace

TEST_CASE("Heads may have sizes of their own") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  auto attention = make(options_of_sizes().qkv_bias(true).kernel(kernel));
  CHECK_THAT(attention->W_query->weight, HasShape({12, kIn}));
  CHECK_THAT(attention->W_key->weight, HasShape({6, kIn}));
  CHECK_THAT(attention->W_value->weight, HasShape({10, kIn}));
  CHECK_THAT(attention->out_proj->weight, HasShape({kOut, 20}));
  const auto x = draw_input();
  const auto expected = by_heads(
      attention,
      attention->W_query(x),
      attention->W_key(x),
      attention->W_value(x));
  CHECK_THAT(attention(x), IsCloseTo(expected));
  CHECK_THAT(
      std::get<0>(attention->forward_with_weights(x)), IsCloseTo(expected));
  auto cache = attention->make_cache(kBatch);
  CHECK_THAT(
      torch::cat(
          {attention->decode(x.slice(1, 0, 3), cache),
           attention->decode(x.slice(1, 3, 4), cache),
           attention->decode(x.slice(1, 4), cache)},
          1),
      IsCloseTo(expected.detach()));
  CHECK_THAT(cache.keys(), HasShape({kBatch, kKvHeads, kTokens, kHeadDim}));
  CHECK_THAT(cache.values(), HasShape({kBatch, kKvHeads, kTokens, kValueDim}));
  auto copy = cache.clone();
  copy.reorder(torch::tensor({1, 1}));
  CHECK_THAT(copy.values()[0], IsEqualTo(cache.values()[1]));
}

TEST_CASE("Sizes of heads that do not fit are refused") {
  THROWS_WITH(
      MultiHeadAttention(options_of_sizes().out_proj(false)),
      "MultiHeadAttention: expected d_out = num_heads * value_dim = 20 without "
      "out_proj, but got d_out = 10");
  THROWS_WITH(
      MultiHeadAttention(options_of_sizes().head_dim(0)),
      "MultiHeadAttention: expected head_dim > 0, but got 0");
  THROWS_WITH(
      MultiHeadAttention(options_of_sizes().value_dim(-1)),
      "MultiHeadAttention: expected value_dim > 0, but got -1");
  auto attention = make(options_of_sizes());
  KVCache cache(
      KVCacheOptions(kBatch, kKvHeads, kHeadDim).dtype(torch::kDouble));
  THROWS_WITH(
      attention->decode(draw_input(), cache),
      "MultiHeadAttention: expected a cache of num_kv_heads = 2, head_dim = 3 "
      "and value_dim = 5, but got 2, 3 and 3");
}

TEST_CASE("Each projection may have a bias or none") {
  using Keys = std::vector<std::string>;
  CHECK(
      keys_of(make(options_of_sizes().query_bias(true).value_bias(true))) ==
      Keys{
          "W_query.weight",
          "W_query.bias",
          "W_key.weight",
          "W_value.weight",
          "W_value.bias",
          "out_proj.weight",
          "out_proj.bias"});
  CHECK(
      keys_of(make(
          options_of_sizes().qkv_bias(true).key_bias(false).out_bias(false))) ==
      Keys{
          "W_query.weight",
          "W_query.bias",
          "W_key.weight",
          "W_value.weight",
          "W_value.bias",
          "out_proj.weight"});
  // Also where the whole module is computed by a kernel of its own.
  torch::manual_seed(13);
  const auto options = MultiHeadAttentionOptions(3, 4, 6, 2)
                           .query_bias(true)
                           .key_bias(false)
                           .out_bias(false);
  MultiHeadAttention attention(options);
  auto copy = MultiHeadAttention(
      MultiHeadAttentionOptions(options).kernel(Kernel::kReference));
  const auto from = attention->parameters();
  auto to = copy->parameters();
  REQUIRE(from.size() == 5);
  REQUIRE(to.size() == from.size());
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    to[i].copy_(from[i]);
  }
  const auto x = torch::randn({2, 6, 3});
  CHECK_THAT(attention(x), IsCloseTo(copy(x)));
}

TEST_CASE("Queries and keys are normalised by the formula") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kAuto);
  const auto kind = GENERATE(HeadNormKind::kRms, HeadNormKind::kLayer);
  const auto scope = GENERATE(
      HeadNormScope::kHead,
      HeadNormScope::kHeadWeights,
      HeadNormScope::kAllHeads);
  const auto with_bias = GENERATE(true, false);
  const auto unit_offset = GENERATE(true, false);
  CAPTURE(kernel, kind, scope, with_bias, unit_offset);
  constexpr double kEps = 0.01;
  auto attention = make(options_of_sizes().kernel(kernel).qk_norm(
      HeadNormOptions(kind).scope(scope).eps(kEps).bias(with_bias).unit_offset(
          unit_offset)));
  const auto normalised = [&](const torch::Tensor& x,
                              const HeadNorm& norm,
                              int64_t heads) {
    auto parts = scope == HeadNormScope::kAllHeads
        ? x
        : x.view({kBatch, kTokens, heads, kHeadDim});
    parts = kind == HeadNormKind::kRms ? rms(parts, kEps) : layer(parts, kEps);
    parts = parts * (unit_offset ? 1 + norm->weight : norm->weight);
    if (with_bias) {
      parts = parts + norm->bias;
    }
    return parts.reshape({kBatch, kTokens, heads * kHeadDim});
  };
  const auto x = draw_input();
  const auto expected = by_heads(
      attention,
      normalised(attention->W_query(x), attention->q_norm, kHeads),
      normalised(attention->W_key(x), attention->k_norm, kKvHeads),
      attention->W_value(x));
  CHECK_THAT(attention(x), IsCloseTo(expected));
  auto cache = attention->make_cache(kBatch);
  CHECK_THAT(attention->decode(x, cache), IsCloseTo(expected.detach()));
}

TEST_CASE("A norm after the rotary embedding is another function") {
  const auto after = GENERATE(true, false);
  auto attention =
      make(MultiHeadAttentionOptions(kIn, 8, 20, 2)
               .rotary(RotaryOptions())
               .qk_norm(HeadNormOptions().weight(true).after_rotary(after)));
  const auto x = draw_input();
  const auto heads = [](const torch::Tensor& y) {
    return y.view({kBatch, kTokens, 2, 4}).transpose(1, 2);
  };
  const auto ready = [&](const torch::Tensor& y, const HeadNorm& norm) {
    const auto rotated = [&](const torch::Tensor& z) {
      return functional::rotary_embedding(
          z, torch::arange(kTokens), RotaryOptions());
    };
    const auto normal = [&](const torch::Tensor& z) {
      return rms(z, 1e-6) * norm->weight;
    };
    return after ? normal(rotated(heads(y))) : rotated(normal(heads(y)));
  };
  const auto context = functional::scaled_dot_product_attention(
      ready(attention->W_query(x), attention->q_norm),
      ready(attention->W_key(x), attention->k_norm),
      heads(attention->W_value(x)),
      functional::ScaledDotProductAttentionFuncOptions().causal(true));
  const auto expected = attention->out_proj(
      context.transpose(1, 2).reshape({kBatch, kTokens, 8}));
  CHECK_THAT(attention(x), IsCloseTo(expected, Tolerance(1e-6, 1e-6)));
}

TEST_CASE("A gate multiplies the context before out_proj") {
  const auto options =
      options_of_sizes().query_bias(true).rotary(RotaryOptions().dim(2));
  auto gated_options = options;
  auto plain = make(options);
  auto gated = make(gated_options.output_gate(OutputGateOptions()));
  CHECK(gated->W_gate->weight.sizes() == torch::IntArrayRef({20, kIn}));
  CHECK(gated->W_gate->bias.defined());
  const torch::NoGradGuard no_grad;
  for (const auto& item : plain->named_parameters()) {
    item.value().copy_(gated->named_parameters()[item.key()]);
  }
  const auto x = draw_input();
  // The context before out_proj, of a module without one.
  auto bare_options = options;
  auto bare = make(bare_options.out_proj(false).d_out(kHeads * kValueDim));
  for (const auto& item : bare->named_parameters()) {
    item.value().copy_(gated->named_parameters()[item.key()]);
  }
  const auto expected =
      gated->out_proj(bare->forward(x) * torch::sigmoid(gated->W_gate(x)));
  CHECK_THAT(gated->forward(x), IsCloseTo(expected));
  CHECK_FALSE(torch::allclose(plain->forward(x), expected));
  CHECK_THAT(std::get<0>(gated->forward_with_weights(x)), IsCloseTo(expected));
  auto cache = gated->make_cache(kBatch);
  const auto first = gated->decode(x.slice(1, 0, 3), cache);
  CHECK_THAT(
      torch::cat({first, gated->decode(x.slice(1, 3), cache)}, 1),
      IsCloseTo(expected));
  // Left-padded: the gate goes with its token.
  auto padded = gated->make_cache(kBatch);
  const auto moved = torch::constant_pad_nd(x, {0, 0, 2, 0});
  CHECK_THAT(
      gated
          ->decode(
              moved,
              padded,
              DecodeOptions(torch::full({kBatch}, kTokens, torch::kLong))
                  .left_padded(true))
          .slice(1, 2),
      IsCloseTo(expected));
}

TEST_CASE("A HeadNorm is a module like others") {
  HeadNorm norm(2, 4, HeadNormOptions(HeadNormKind::kLayer).bias(true));
  CHECK(
      c10::str(norm) ==
      "torch_attention::HeadNorm(num_heads=2, head_dim=4, kind=layer, "
      "scope=head, eps=1e-06)");
  CHECK_THAT(norm->weight, IsEqualTo(torch::ones({4})));
  CHECK_THAT(norm->bias, IsEqualTo(torch::zeros({4})));
  // Half precision is computed in float32.
  const auto x = 100 * torch::randn({1, 2, 3, 4});
  const auto half = x.to(torch::kHalf);
  CHECK_THAT(
      HeadNorm(2, 4)->forward(half),
      IsEqualTo(rms(half.to(torch::kFloat), 1e-6).to(torch::kHalf)));
  THROWS_WITH(
      norm(torch::ones({1, 3, 3, 4})),
      "HeadNorm: expected input of shape (B, 2, T, 4), but got [1, 3, 3, 4]");
  THROWS_WITH(
      HeadNorm(2, 4, HeadNormOptions().weight(false).bias(true)),
      "HeadNorm: expected weight = true beside bias or unit_offset");
  THROWS_WITH(
      HeadNorm(2, 4, HeadNormOptions().eps(-1)),
      "HeadNorm: expected a finite eps >= 0, but got -1");
  auto copy = std::dynamic_pointer_cast<HeadNormImpl>(norm->clone());
  CHECK_FALSE(copy->weight.is_alias_of(norm->weight));
  MultiHeadAttention attention(options_of_sizes().qk_norm(
      HeadNormOptions().scope(HeadNormScope::kAllHeads)));
  CHECK(
      attention->k_norm->weight.sizes() ==
      torch::IntArrayRef(kKvHeads * kHeadDim));
  THROWS_WITH(
      MultiHeadAttention(
          options_of_sizes().qk_norm(HeadNormOptions()
                                         .scope(HeadNormScope::kAllHeads)
                                         .after_rotary(true))),
      "MultiHeadAttention: expected a qk_norm of all heads before the rotary "
      "embedding");
}

} // namespace heads_test
