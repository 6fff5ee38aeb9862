// Modules with windows to both sides, chunks, sinks, a temperature by position
// and clipped projections.

#include <support/close.h>
#include <support/decode.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <cmath>
#include <sstream>
#include <vector>

namespace rules_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kTokens = 23;

MultiHeadAttentionOptions base() {
  return MultiHeadAttentionOptions(12, 16, 60, 4)
      .num_kv_heads(2)
      .register_mask(false);
}

MultiHeadAttention make(const MultiHeadAttentionOptions& options) {
  torch::manual_seed(1);
  MultiHeadAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  if (attention->sinks.defined()) {
    const torch::NoGradGuard no_grad;
    attention->sinks.copy_(torch::tensor({-1.0, 0.5, 1.0, 3.0}));
  }
  return attention;
}

torch::Tensor draw_input(int64_t B = 2, int64_t T = kTokens) {
  torch::manual_seed(2);
  return torch::randn({B, T, 12}, torch::kDouble);
}

torch::Tensor heads(const torch::Tensor& projected) {
  return projected.unflatten(-1, {-1, 4}).transpose(1, 2);
}

/// The module's weights around attention of `options`; `change` takes what was
/// projected.
template <typename Change>
torch::Tensor by_hand(
    MultiHeadAttention& attention,
    const torch::Tensor& x,
    const Options& options,
    const Change& change) {
  auto query = heads(attention->W_query(x));
  auto key = heads(attention->W_key(x));
  auto value = heads(attention->W_value(x));
  change(query, key, value);
  const auto context = F::scaled_dot_product_attention(
      query, key, value, Options(options).enable_gqa(true));
  return attention->out_proj(context.transpose(1, 2).flatten(2));
}

torch::Tensor by_hand(
    MultiHeadAttention& attention,
    const torch::Tensor& x,
    const Options& options) {
  return by_hand(attention, x, options, [](auto&, auto&, auto&) {});
}

torch::Tensor future(int64_t T = kTokens) {
  return torch::ones({T, T}, torch::kBool).triu(1);
}

} // namespace

TEST_CASE("Modules hide by windows to both sides and by chunks") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  // Few enough for a kernel of its own, and not.
  const int64_t T = GENERATE(3, kTokens);
  CAPTURE(kernel, T);
  const auto x = draw_input(2, T);
  const auto all = torch::ones({T, T}, torch::kBool);
  const auto check = [&](MultiHeadAttentionOptions options,
                         const torch::Tensor& hidden) {
    auto attention = make(options.kernel(kernel));
    CHECK_THAT(
        attention(x).detach(),
        IsCloseTo(by_hand(attention, x, Options().mask(hidden)).detach()));
  };
  check(
      base().causal(false).window(3).window_after(2),
      all.triu(3).bitwise_or(all.tril(-3)));
  check(base().causal(false).window_after(1), all.triu(2));
  const auto chunks = torch::div(torch::arange(T), 2, "floor");
  const auto others = chunks.unsqueeze(0) != chunks.unsqueeze(1);
  check(base().chunk(2), others.bitwise_or(future(T)));
  check(base().causal(false).chunk(2), others);
  CausalAttention single(CausalAttentionOptions(12, 4, 60)
                             .causal(false)
                             .window(3)
                             .window_after(2)
                             .kernel(kernel));
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(12, 4, 60, 2)
          .causal(false)
          .window(3)
          .window_after(2)
          .kernel(kernel));
  single->to(torch::kDouble);
  wrapper->to(torch::kDouble);
  const auto both = ForwardOptions().mask(all.triu(3).bitwise_or(all.tril(-3)));
  const auto given = single->forward(x);
  single->options.window(std::nullopt).window_after(std::nullopt);
  CHECK_THAT(given.detach(), IsCloseTo(single->forward(x, both).detach()));
  CHECK_THAT(
      wrapper->forward(x).slice(2, 0, 4).detach(),
      IsCloseTo(wrapper->heads[0]->as<CausalAttention>()->forward(x).detach()));
}

TEST_CASE("A learned sink of each head") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  CAPTURE(kernel);
  auto attention = make(base().sinks(true).kernel(kernel));
  // This size is one for which one kernel computes modules without sinks.
  const auto x = draw_input(1, GENERATE(2, kTokens));
  const auto output = attention(x);
  const auto expected =
      by_hand(attention, x, Options().causal(true).sinks(attention->sinks));
  CHECK_THAT(output.detach(), IsCloseTo(expected.detach()));
  const auto gradient = [&](const torch::Tensor& of) {
    return torch::autograd::grad({of.square().sum()}, {attention->sinks})[0];
  };
  CHECK_THAT(gradient(output), IsCloseTo(gradient(expected)));
  CHECK(gradient(attention(x)).abs().min().item<double>() > 0);
  const auto [same, weights] = attention->forward_with_weights(x);
  CHECK_THAT(same.detach(), IsCloseTo(output.detach()));
  CHECK(weights.sum(-1).max().item<double>() < 1);

  CHECK(attention->named_parameters().contains("sinks"));
  const auto copy =
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(attention->clone());
  CHECK_THAT(copy->sinks.detach(), IsEqualTo(attention->sinks.detach()));
  CHECK_FALSE(copy->sinks.is_alias_of(attention->sinks));
  attention->reset_parameters();
  CHECK_THAT(
      attention->sinks.detach(), IsEqualTo(torch::zeros({4}, torch::kDouble)));
  CHECK_FALSE(make(base())->named_parameters().contains("sinks"));
}

TEST_CASE("Sinks are loaded and saved beside the projections") {
  auto attention = make(base().sinks(true));
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  save_weights(
      *attention,
      path,
      SaveOptions().layout(WeightLayout::llama()).prefix("self_attn"));
  CHECK(read_weights(path).contains("self_attn.sinks"));
  auto other = make(base().sinks(true));
  other->reset_parameters();
  load_weights(*other, path, LoadOptions().prefix("self_attn"));
  const auto x = draw_input();
  CHECK_THAT(other(x).detach(), IsEqualTo(attention(x).detach()));
}

TEST_CASE("A temperature by order counts tokens, whatever their positions") {
  const auto with = [](bool by_order) {
    torch::manual_seed(2);
    return make(base().temperature(
        TemperatureOptions(2).scale(0.7).by_order(by_order)));
  };
  const auto x = draw_input();
  const auto positions = 1000 + 3 * torch::arange(kTokens);
  auto ordered = with(true);
  CHECK_THAT(ordered(x), IsEqualTo(with(false)(x)));
  CHECK_THAT(
      ordered->forward(x, ForwardOptions().positions(positions)),
      IsEqualTo(ordered(x)));
  const auto packed = x.flatten(0, 1);
  const auto starts = torch::arange(x.size(0) + 1) * kTokens;
  CHECK_THAT(
      ordered->forward(
          packed,
          ForwardOptions().cu_seqlens(starts).positions(
              positions.repeat({x.size(0)}))),
      IsCloseTo(ordered(x).flatten(0, 1)));
}

TEST_CASE("A temperature multiplies queries by their positions") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  auto attention = make(base().kernel(kernel).temperature(
      TemperatureOptions(5).scale(0.7).offset(2)));
  const auto x = draw_input();
  const auto factor_at = [](int64_t position) {
    return 1 +
        0.7 * std::log(1 + std::floor(static_cast<double>(position + 2) / 5));
  };
  const auto scaled_by = [&](const std::vector<double>& factors) {
    return by_hand(
        attention, x, Options().causal(true), [&](auto& query, auto&, auto&) {
          query = query * torch::tensor(factors, torch::kDouble).unsqueeze(-1);
        });
  };
  std::vector<double> in_order;
  std::vector<double> far;
  for (int64_t t = 0; t < kTokens; ++t) {
    in_order.push_back(factor_at(t));
    far.push_back(factor_at(1000 + 3 * t));
  }
  CHECK_THAT(attention(x).detach(), IsCloseTo(scaled_by(in_order).detach()));
  const auto positions = 1000 + 3 * torch::arange(kTokens);
  CHECK_THAT(
      attention->forward(x, ForwardOptions().positions(positions)).detach(),
      IsCloseTo(scaled_by(far).detach()));
  CHECK_THAT(
      attention
          ->forward(
              x,
              ForwardOptions().positions(torch::stack({positions, positions})))
          .detach(),
      IsCloseTo(scaled_by(far).detach()));
}

TEST_CASE("Projections are clipped, and gradients where they are") {
  auto attention = make(base().clip_qkv(0.3));
  const auto x = draw_input().requires_grad_();
  const auto expected = by_hand(
      attention,
      x,
      Options().causal(true),
      [](auto& query, auto& key, auto& value) {
        for (auto* each : {&query, &key, &value}) {
          CHECK(each->abs().max().template item<double>() > 0.3);
          *each = each->clamp(-0.3, 0.3);
        }
      });
  const auto output = attention(x);
  CHECK_THAT(output.detach(), IsCloseTo(expected.detach()));
  const auto gradient = [&](const torch::Tensor& of) {
    return torch::autograd::grad({of.sum()}, {x}, {}, /*retain_graph=*/true)[0];
  };
  CHECK_THAT(gradient(output), IsCloseTo(gradient(expected)));
}

TEST_CASE("Root mean square without weights, after rotary, is Llama 4's norm") {
  auto attention =
      make(base()
               .rotary(RotaryOptions())
               .qk_norm(HeadNormOptions().weight(false).after_rotary(true).eps(
                   1e-5)));
  CHECK(attention->q_norm->parameters().empty());
  const auto x = draw_input();
  const auto normalised = [](const torch::Tensor& each) {
    return each * (each.square().mean(-1, /*keepdim=*/true) + 1e-5).rsqrt();
  };
  const auto expected = by_hand(
      attention, x, Options().causal(true), [&](auto& query, auto& key, auto&) {
        const auto at = torch::arange(kTokens);
        query = normalised(F::rotary_embedding(query, at, RotaryOptions()));
        key = normalised(F::rotary_embedding(key, at, RotaryOptions()));
      });
  CHECK_THAT(attention(x).detach(), IsCloseTo(expected.detach(), {1e-5, 1e-6}));
}

TEST_CASE("Values are divided by their root mean square") {
  auto attention = make(base().value_norm_eps(1e-3));
  const auto x = draw_input();
  const auto expected = by_hand(
      attention,
      x,
      Options().causal(true),
      [](const auto&, const auto&, auto& value) {
        const auto squares = value.square().mean(-1, /*keepdim=*/true);
        value = value / (squares + 1e-3).sqrt();
      });
  CHECK_THAT(attention(x).detach(), IsCloseTo(expected.detach()));
  THROWS_WITH(
      MultiHeadAttention(base().value_norm_eps(-1)),
      "MultiHeadAttention: expected value_norm_eps >= 0, but got -1");
}

TEST_CASE("Decoding has every rule") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const int64_t chunk = GENERATE(1, 4, 7, 30);
  const int64_t block = GENERATE(1, 3, 256);
  CAPTURE(kernel, chunk, block);
  const auto options = base()
                           .kernel(kernel)
                           .rotary(RotaryOptions())
                           .sinks(true)
                           .chunk(chunk)
                           .clip_qkv(0.8)
                           .value_norm_eps(1e-5)
                           .temperature(TemperatureOptions(3));
  auto attention = make(options);
  const auto x = draw_input(2, 41);
  const auto expected = attention(x).detach();
  auto cache =
      KVCache(KVCacheOptions(attention->make_cache(2).options()).block(block));
  CHECK(cache.options().chunk() == chunk);
  CHECK_THAT(
      decode_in_chunks(attention, cache, x, {9, 1, 1, 5, 1}),
      IsCloseTo(expected));
  CHECK(cache.capacity() <= chunk - 1 + 2 * block + 9);
  CHECK(cache.starts().remainder(chunk).eq(0).all().item<bool>());

  // Taken back, and on; sequences of different lengths.
  const auto back = std::min<int64_t>(block, 6);
  cache.truncate(41 - back);
  CHECK_THAT(
      attention->decode(x.slice(1, 41 - back), cache),
      IsCloseTo(expected.slice(1, 41 - back)));
  cache.reset();
  const auto lengths = torch::tensor({int64_t{20}, int64_t{13}});
  const auto first =
      attention->decode(x.slice(1, 0, 20), cache, DecodeOptions(lengths));
  CHECK_THAT(first[1].slice(0, 0, 13), IsCloseTo(expected[1].slice(0, 0, 13)));
  for (int64_t step = 0; step < 15; ++step) {
    const auto token = torch::stack({x[0][20 + step], x[1][13 + step]});
    const auto context = attention->decode(token.unsqueeze(1), cache);
    CHECK_THAT(context[0][0], IsCloseTo(expected[0][20 + step]));
    CHECK_THAT(context[1][0], IsCloseTo(expected[1][13 + step]));
  }
}

TEST_CASE("A cache of chunks keeps what the next token sees") {
  auto attention = make(base().chunk(8));
  auto cache =
      KVCache(KVCacheOptions(attention->make_cache(1).options()).block(2));
  const auto x = draw_input(1, 60);
  for (int64_t t = 0; t < 40; ++t) {
    (void)attention->decode(x.slice(1, t, t + 1), cache);
    CHECK(cache.capacity() <= 8 - 1 + 2 * 2);
    CHECK(cache.starts()[0].item<int64_t>() <= (t + 1) / 8 * 8);
  }
  const auto start = cache.starts()[0].item<int64_t>();
  CHECK(start >= 24);
  THROWS_WITH(
      cache.truncate(start - 1),
      "expected to truncate sequence 0 to 0 or at least " +
          std::to_string(start) + " tokens, since the first " +
          std::to_string(start) + " are dropped (chunk), but got " +
          std::to_string(start - 1));
  THROWS_WITH(
      KVCache(KVCacheOptions(1, 1, 1).chunk(2).window(3)),
      "KVCache: expected a window or a chunk, but got window = 3 and chunk = 2");
  THROWS_WITH(KVCache(KVCacheOptions(1, 1, 1).chunk(0)), "expected chunk > 0");
  KVCache other(KVCacheOptions(1, 2, 4).dtype(torch::kDouble).chunk(12));
  THROWS_WITH(
      attention->decode(x.slice(1, 0, 1), other),
      "expected a cache that keeps all tokens or chunks of a multiple of 8, "
      "but got one of chunk = 12");
  KVCache window(KVCacheOptions(1, 2, 4).dtype(torch::kDouble).window(8));
  THROWS_WITH(
      attention->decode(x.slice(1, 0, 1), window),
      "expected a cache that keeps all tokens or at least the window of the "
      "module, which is all, but got one of window = 8");
  KVCache all(KVCacheOptions(1, 2, 4).dtype(torch::kDouble));
  CHECK_THAT(
      decode_in_chunks(attention, all, x, {5}),
      IsCloseTo(attention(x).detach()));
}

TEST_CASE("Chunks and temperatures go by the positions of a call") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  auto attention = make(base().kernel(kernel).chunk(5).sinks(true).temperature(
      TemperatureOptions(4)));
  const auto x = draw_input();
  // The second sequence has 9 tokens of padding before it.
  auto hidden = torch::zeros({2, kTokens}, torch::kBool);
  hidden[1].slice(0, 0, 9).fill_(true);
  const auto positions = (hidden.logical_not().cumsum(-1) - 1).clamp_min(0);
  const auto call =
      ForwardOptions().key_padding_mask(hidden).positions(positions);
  const auto output = attention->forward(x, call).detach();
  const auto alone = attention(x[1].slice(0, 9).unsqueeze(0)).detach();
  CHECK_THAT(output[0], IsCloseTo(attention(x)[0].detach()));
  CHECK_THAT(output[1].slice(0, 9), IsCloseTo(alone[0]));
  CHECK_THAT(
      std::get<0>(attention->forward_with_weights(x, call))
          .detach()[1]
          .slice(0, 9),
      IsCloseTo(alone[0]));
  const auto in_order = ForwardOptions().positions(torch::arange(kTokens));
  CHECK_THAT(
      attention->forward(x, in_order).detach(),
      IsCloseTo(attention(x).detach()));
  auto cache = attention->make_cache(2);
  const auto lengths = torch::tensor({kTokens, kTokens - 9});
  CHECK_THAT(
      attention->decode(x, cache, DecodeOptions(lengths).left_padded(true))[1]
          .slice(0, 9),
      IsCloseTo(alone[0]));
}

TEST_CASE("Chunks begin after the padding before a sequence") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  auto attention = make(base().kernel(kernel).chunk(5));
  const auto x = draw_input();
  const int64_t padding = 7;
  auto hidden = torch::zeros({2, kTokens}, torch::kBool);
  hidden[0].slice(0, 9, 11).fill_(true);
  const auto first = [&](int64_t row) {
    return attention->forward(x, ForwardOptions().key_padding_mask(hidden))[row]
        .detach();
  };
  // Padding elsewhere moves no chunk.
  CHECK_THAT(first(1), IsCloseTo(attention(x)[1].detach()));
  hidden[1].slice(0, 0, padding).fill_(true);
  CHECK_THAT(
      first(1).slice(0, padding),
      IsCloseTo(attention(x[1].slice(0, padding).unsqueeze(0)).detach()[0]));
  const auto alone = attention->forward(
      x.slice(0, 0, 1),
      ForwardOptions().key_padding_mask(hidden.slice(0, 0, 1)));
  CHECK_THAT(first(0), IsCloseTo(alone.detach()[0]));
}

TEST_CASE("Rules are printed, and refused by name if they do not fit") {
  std::ostringstream text;
  text << MultiHeadAttention(base()
                                 .causal(false)
                                 .window(5)
                                 .window_after(4)
                                 .sinks(true)
                                 .clip_qkv(8)
                                 .temperature(TemperatureOptions(8192)));
  CHECK_THAT(
      text.str(),
      ContainsText(", window=5, window_after=4, sinks=true, clip_qkv=8, "
                   "temperature_floor_scale=8192, temperature_scale=0.1"));
  THROWS_WITH(
      MultiHeadAttention(base().clip_qkv(0)),
      "MultiHeadAttention: expected clip_qkv > 0, but got 0");
  THROWS_WITH(
      MultiHeadAttention(base().temperature(TemperatureOptions(0))),
      "expected floor_scale of the temperature > 0, but got 0");
  THROWS_WITH(
      MultiHeadAttention(
          base().temperature(TemperatureOptions(4).scale(INFINITY))),
      "expected a finite scale of the temperature, but got inf");
  THROWS_WITH(
      MultiHeadAttention(base().temperature(TemperatureOptions(4).offset(-1))),
      "expected an offset >= 0 of the temperature, but got -1");
}

} // namespace rules_test
