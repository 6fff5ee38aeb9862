#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>

namespace latent_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 9;
constexpr int64_t kIn = 10;
constexpr int64_t kHeads = 3;

/// Small latent vectors, which it seldom pays to expand, and large ones.
LatentAttentionOptions options_of(int64_t kv_rank) {
  return LatentAttentionOptions(kIn, 12, 16, kHeads)
      .kv_rank(kv_rank)
      .nope_dim(6)
      .rope_dim(4)
      .value_dim(5);
}

LatentAttention make(const LatentAttentionOptions& options) {
  torch::manual_seed(31);
  LatentAttention attention(options);
  attention->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  attention->kv_a_layernorm->weight.uniform_(0.5, 1.5);
  attention->eval();
  return attention;
}

torch::Tensor input(int64_t T = kTokens) {
  torch::manual_seed(32);
  return torch::randn({kBatch, T, kIn}, torch::kDouble);
}

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-6).sqrt() * weight;
}

/// The formula, head by head. `hidden` broadcasts to (B, T, T).
torch::Tensor by_formula(
    LatentAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& hidden) {
  const auto& options = attention->options;
  const auto R = options.kv_rank();
  const auto N = options.nope_dim();
  const auto E = options.value_dim();
  const auto D = N + options.rope_dim();
  const auto rotate = [&](const torch::Tensor& part) {
    return options.rotary()
        ? functional::rotary_embedding(
              part, torch::arange(x.size(1)), *options.rotary())
        : part;
  };
  const auto factors = [&] {
    const auto& at = options.temperature();
    const auto places = torch::arange(x.size(1), torch::kDouble);
    const auto factor = at ? 1 +
            at->scale() *
                torch::log1p(torch::floor(
                    (places + at->offset()) /
                    static_cast<double>(at->floor_scale())))
                           : torch::ones_like(places);
    return factor.unsqueeze(-1) * options.query_scale();
  };
  // Before the rotation, which a factor of the whole query does not change.
  const auto queries = factors() *
      (options.query_rank()
           ? attention->q_b_proj(rms_norm(
                 attention->q_a_proj(x), attention->q_a_layernorm->weight))
           : attention->q_proj(x));
  const auto both = attention->kv_a_proj_with_mqa(x);
  const auto latent = options.latent_scale() *
      rms_norm(both.slice(-1, 0, R), attention->kv_a_layernorm->weight);
  const auto keys_and_values = attention->kv_b_proj(latent);
  const auto shared = rotate(both.slice(-1, R));
  const auto scale =
      options.scale().value_or(1 / std::sqrt(static_cast<double>(D)));
  std::vector<torch::Tensor> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto query = queries.slice(-1, h * D, (h + 1) * D);
    const auto of_head =
        keys_and_values.slice(-1, h * (N + E), (h + 1) * (N + E));
    const auto q =
        torch::cat({query.slice(-1, 0, N), rotate(query.slice(-1, N))}, -1);
    const auto k = torch::cat({of_head.slice(-1, 0, N), shared}, -1);
    const auto scores = torch::matmul(q, k.transpose(1, 2)) * scale;
    const auto weights = torch::softmax(
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
        -1);
    heads.push_back(torch::matmul(weights, of_head.slice(-1, N)));
  }
  return attention->o_proj(torch::cat(heads, -1));
}

torch::Tensor future(int64_t T = kTokens) {
  return functional::causal_mask(T, T);
}

} // namespace

TEST_CASE("LatentAttention computes its formula") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  auto options = GENERATE(values<LatentAttentionOptions>(
      {options_of(8),
       options_of(8).query_rank(7).bias(true),
       options_of(8).scale(0.7).rotary(RotaryOptions().theta(50)),
       options_of(8).rotary(RotaryOptions().dim(2)),
       options_of(8).rotary(std::nullopt),
       options_of(8).query_rank(7).query_scale(1.7).latent_scale(0.4),
       options_of(8).temperature(TemperatureOptions(3).scale(0.5).offset(0)),
       options_of(8).rotary(RotaryOptions().reversed(true))}));
  auto attention = make(options.kernel(kernel));
  const auto x = input();
  const auto expected = by_formula(attention, x, future());
  CHECK_THAT(attention->forward(x), IsCloseTo(expected));
  if (kernel == Kernel::kAuto) {
    const auto [context, weights] = attention->forward_with_weights(x);
    CHECK_THAT(context, IsCloseTo(expected));
    CHECK(
        weights.sizes() ==
        torch::IntArrayRef({kBatch, kHeads, kTokens, kTokens}));
    CHECK_THAT(
        weights.sum(-1),
        IsCloseTo(torch::ones({kBatch, kHeads, kTokens}, torch::kDouble)));
  }
}

TEST_CASE("LatentAttention hides what a call says") {
  auto attention = make(options_of(8).causal(false));
  const auto x = input();
  const auto lengths = torch::tensor({5, 9});
  const auto padding =
      torch::arange(kTokens).unsqueeze(0) >= lengths.unsqueeze(1);
  const auto expected = by_formula(attention, x, padding.unsqueeze(1));
  CHECK_THAT(
      attention->forward(x, ForwardOptions().key_lengths(lengths)),
      IsCloseTo(expected));
  CHECK_THAT(
      attention->forward(x, ForwardOptions().key_padding_mask(padding)),
      IsCloseTo(expected));
  // Left-padded, with positions that count tokens alone.
  auto causal = make(options_of(8));
  const auto moved = torch::cat({torch::zeros({kBatch, 2, kIn}), x}, 1);
  const auto before = torch::zeros({kBatch, kTokens + 2}, torch::kBool);
  before.slice(1, 0, 2).fill_(true);
  CHECK_THAT(
      causal
          ->forward(
              moved,
              ForwardOptions().key_padding_mask(before).positions(
                  (torch::arange(kTokens + 2) - 2).clamp_min(0)))
          .slice(1, 2),
      IsCloseTo(causal->forward(x)));
}

TEST_CASE("The gradients of LatentAttention are those of its formula") {
  auto attention = make(options_of(8).query_rank(7).bias(true));
  const auto x = input().requires_grad_();
  torch::manual_seed(33);
  const auto of_output = torch::randn({kBatch, kTokens, 12}, torch::kDouble);
  auto wanted = attention->parameters();
  wanted.push_back(x);
  const auto gradients = [&](const torch::Tensor& output) {
    return torch::autograd::grad({(output * of_output).sum()}, wanted);
  };
  const auto ours = gradients(attention->forward(x));
  const auto expected = gradients(by_formula(attention, x, future()));
  REQUIRE(ours.size() == expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(ours[i], IsCloseTo(expected[i]));
  }
}

TEST_CASE("LatentAttention decodes what forward gives") {
  // From so many tokens on keys and values are formed: 2, and never.
  const int64_t kv_rank = GENERATE(4, 40);
  const bool scales = GENERATE(false, true);
  const auto chunks = GENERATE(
      values<std::vector<int64_t>>({{9}, {1, 1}, {4, 1, 3, 1}, {1, 8}}));
  auto options = options_of(kv_rank).query_rank(7);
  if (scales) {
    options.temperature(TemperatureOptions(2).scale(0.5))
        .query_scale(1.3)
        .latent_scale(0.7)
        .rotary(std::nullopt);
  }
  auto attention = make(options);
  const auto x = input();
  auto cache = attention->make_cache(kBatch);
  std::vector<torch::Tensor> contexts;
  int64_t begin = 0;
  for (size_t i = 0; begin < kTokens; ++i) {
    const auto end =
        std::min(begin + chunks[std::min(i, chunks.size() - 1)], kTokens);
    contexts.push_back(attention->decode(x.slice(1, begin, end), cache));
    begin = end;
  }
  CHECK_THAT(
      torch::cat(contexts, 1), IsCloseTo(by_formula(attention, x, future())));
  CHECK_THAT(cache.lengths(), IsEqualTo(torch::full({kBatch}, kTokens)));
}

TEST_CASE("LatentAttention decodes padded prompts") {
  auto attention = make(options_of(8));
  const bool left = GENERATE(false, true);
  const auto x = input();
  const std::vector<int64_t> lengths{3, 7};
  auto cache = attention->make_cache(kBatch);
  auto prompt = x.slice(1, 0, 7).clone();
  if (left) {
    prompt[0].slice(0, 4).copy_(x[0].slice(0, 0, 3));
  }
  const auto first = attention->decode(
      prompt, cache, DecodeOptions(torch::tensor(lengths)).left_padded(left));
  const auto next = attention->decode(x.slice(1, 7, 8), cache);
  for (int64_t b = 0; b < kBatch; ++b) {
    CAPTURE(b);
    const auto length = lengths[static_cast<size_t>(b)];
    const auto text =
        torch::cat({x[b].slice(0, 0, length), x[b].slice(0, 7, 8)})
            .unsqueeze(0);
    const auto expected = attention->forward(text)[0];
    const auto at = left ? 7 - length : 0;
    CHECK_THAT(
        first[b].slice(0, at, at + length),
        IsCloseTo(expected.slice(0, 0, length)));
    CHECK_THAT(next[b], IsCloseTo(expected.slice(0, length)));
  }
}

TEST_CASE("The cache of LatentAttention holds each latent vector once") {
  auto attention = make(options_of(8));
  const auto x = input();
  auto cache = attention->make_cache(kBatch);
  attention->decode(x.slice(1, 0, 8), cache);
  CHECK(
      cache.nbytes() ==
      static_cast<size_t>(kBatch * cache.capacity() * (8 + 4)) *
          sizeof(double));
  CHECK_THAT(cache.values(), IsEqualTo(cache.keys().slice(-1, 0, 8)));
  const auto last = x.slice(1, 8);
  const auto expected = attention->forward(x).slice(1, 8);
  SECTION("A copy is one of its own") {
    auto copy = cache.clone();
    attention->decode(torch::ones_like(last), cache);
    CHECK_THAT(attention->decode(last, copy), IsCloseTo(expected));
    CHECK(copy.nbytes() == cache.nbytes());
  }
  SECTION("Sequences change their places") {
    cache.reorder(torch::tensor({1, 0}));
    CHECK_THAT(
        attention->decode(last.flip({0}), cache),
        IsCloseTo(expected.flip({0})));
  }
  SECTION("The last tokens are taken back") {
    attention->decode(torch::ones_like(last), cache);
    cache.truncate(8);
    CHECK_THAT(attention->decode(last, cache), IsCloseTo(expected));
  }
  SECTION("Memory grows") {
    cache.reserve(16);
    CHECK_THAT(attention->decode(last, cache), IsCloseTo(expected));
  }
  SECTION("It is converted") {
    cache.to(torch::kFloat);
    CHECK(cache.values().scalar_type() == torch::kFloat);
    CHECK_THAT(
        attention->decode(last, cache),
        IsCloseTo(expected, Tolerance(1e-4, 1e-5)));
  }
}

TEST_CASE("A cache with values in its keys takes keys alone") {
  const auto options =
      KVCacheOptions(1, 1, 6).value_dim(4).values_in_keys(true);
  KVCache cache(options);
  const auto keys = torch::rand({1, 1, 2, 6});
  cache.append(keys, {});
  CHECK_THAT(cache.values(), IsEqualTo(keys.slice(-1, 0, 4)));
  THROWS_WITH(
      cache.append(keys, keys.slice(-1, 0, 4)),
      "expected keys alone, which have the values in them");
  CHECK(cache.lengths()[0].item<int64_t>() == 2);
  auto large = options;
  THROWS_WITH(
      KVCache(large.value_dim(7)),
      "expected value_dim <= head_dim with values_in_keys, but got 7 > 6");
  KVCache plain(KVCacheOptions(1, 1, 6));
  THROWS_WITH(plain.append(keys, {}), "the values are undefined");
}

TEST_CASE("LatentAttention refuses what does not fit") {
  auto attention = make(options_of(8));
  THROWS_WITH(
      attention->forward(torch::rand({2, 3, 11}, torch::kDouble)),
      "LatentAttention: expected");
  THROWS_WITH(attention->forward(input(17)), "context_length");
  KVCache other(KVCacheOptions(kBatch, 1, 12).value_dim(8));
  THROWS_WITH(
      attention->decode(input(1), other),
      "LatentAttention: expected a cache with values_in_keys of one head, "
      "head_dim = kv_rank + rope_dim = 12, value_dim = kv_rank = 8");
  auto cache = attention->make_cache(1);
  THROWS_WITH(
      attention->decode(input(1), cache),
      "LatentAttention: expected a cache of 2 sequences on cpu, but got one of "
      "1 on cpu");
  auto full = attention->make_cache(kBatch);
  attention->decode(input(16), full);
  THROWS_WITH(
      attention->decode(input(1), full),
      "LatentAttention: expected at most 16 tokens (context_length), but got 1 "
      "new ones for sequence 0 of the cache, which has 16; the cache is "
      "unchanged");
  auto both_sides = make(options_of(8).causal(false));
  auto empty = both_sides->make_cache(kBatch);
  THROWS_WITH(both_sides->decode(input(1), empty), "expected causal = true");
  auto training = make(options_of(8).dropout(0.1));
  training->train();
  THROWS_WITH(training->decode(input(1), empty), "expected evaluation");
  THROWS_WITH(
      LatentAttention(options_of(8).rope_dim(3)),
      "LatentAttention: expected an even dim in [2, head_dim = 3]");
  THROWS_WITH(LatentAttention(options_of(0)), "kv_rank");
}

TEST_CASE("LatentAttention is saved, loaded, copied and called as a module") {
  auto attention = make(options_of(8).query_rank(7).bias(true));
  const auto x = input();
  const auto expected = attention->forward(x);
  const TemporaryFolder folder;
  save_weights(*attention, folder.file("latent.safetensors"));
  LatentAttention loaded(attention->options);
  loaded->to(torch::kDouble);
  loaded->eval();
  load_weights(*loaded, folder.file("latent.safetensors"));
  CHECK_THAT(loaded->forward(x), IsEqualTo(expected));
  const auto copy =
      std::dynamic_pointer_cast<LatentAttentionImpl>(attention->clone());
  CHECK_THAT(copy->forward(x), IsEqualTo(expected));
  torch::nn::Sequential model(attention);
  CHECK_THAT(model->forward(x), IsEqualTo(expected));
  std::ostringstream printed;
  attention->pretty_print(printed);
  CHECK(
      printed.str() ==
      "torch_attention::LatentAttention(d_in=10, d_out=12, context_length=16, "
      "num_heads=3, query_rank=7, kv_rank=8, nope_dim=6, rope_dim=4, "
      "value_dim=5, rotary_theta=10000, rotary_pairing=interleaved, dropout=0, "
      "bias=true, causal=true, kernel=auto)");
}

} // namespace latent_attention_test
