// Blocks of tokens that see each other to both sides.

#include <support/close.h>
#include <support/test.h>

#include <torch_attention/nn/block_cache.h>

#include <cstdint>
#include <random>
#include <vector>

namespace visible_blocks_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kTokens = 13;

/// Blocks of random lengths with text between, (B, kTokens).
torch::Tensor random_blocks(int64_t batch, std::mt19937& engine) {
  auto ids = torch::full({batch, kTokens}, -1, torch::kLong);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t block = 0;
    for (int64_t begin = engine() % 3; begin < kTokens;) {
      const auto length = static_cast<int64_t>(1 + engine() % 5);
      ids[b].slice(0, begin, std::min(begin + length, kTokens)).fill_(block++);
      begin += length + static_cast<int64_t>(engine() % 3);
    }
  }
  return ids;
}

/// The hidden keys, by plain loops: bool (B, 1, T, T).
torch::Tensor hidden(
    const torch::Tensor& ids,
    BlockScope scope,
    int64_t window) {
  const auto B = ids.size(0);
  auto mask = torch::zeros({B, 1, kTokens, kTokens}, torch::kBool);
  const auto block = ids.accessor<int64_t, 2>();
  auto out = mask.accessor<bool, 4>();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t j = 0; j < kTokens; ++j) {
        const bool together = block[b][i] >= 0 && block[b][i] == block[b][j];
        const bool in_window = window == 0 || j > i - window;
        const bool sees = scope == BlockScope::kNone ? j <= i && in_window
            : scope == BlockScope::kCausal ? (j <= i || together) && in_window
                                           : (j <= i && in_window) || together;
        out[b][0][i][j] = !sees;
      }
    }
  }
  return mask;
}

MultiHeadAttentionOptions options_of(BlockScope scope, int64_t window) {
  auto options = MultiHeadAttentionOptions(8, 8, kTokens, 2)
                     .rotary(RotaryOptions())
                     .num_kv_heads(1)
                     .block_scope(scope);
  return window == 0 ? options : options.window(window);
}

/// A module of these weights without a rule of what is seen.
MultiHeadAttention without_rule(const MultiHeadAttention& attention) {
  auto options = attention->options;
  MultiHeadAttention result(
      options.causal(false).window(std::nullopt).register_mask(false));
  const torch::NoGradGuard no_grad;
  const auto ours = result->named_parameters();
  for (const auto& item : attention->named_parameters()) {
    ours[item.key()].copy_(item.value());
  }
  return result;
}

/// Compares a module that is given blocks with one that has no rule and is
/// given what they hide. Sequence b is padded from token lengths[b] on.
template <typename Module>
void check_padded(
    Module& module,
    Module& plain,
    const torch::Tensor& ids,
    const torch::Tensor& mask,
    const torch::Tensor& lengths) {
  const auto x = torch::randn({ids.size(0), kTokens, 8});
  const auto padding = torch::arange(kTokens).ge(lengths.unsqueeze(1));
  const auto call =
      ForwardOptions().visible_blocks(ids).key_padding_mask(padding);
  const auto expected =
      plain(x, ForwardOptions().mask(mask).key_padding_mask(padding));
  CHECK_THAT(module(x, call), IsCloseTo(expected));
  const auto with_weights = module->forward_with_weights(x, call);
  CHECK_THAT(std::get<0>(with_weights), IsCloseTo(expected));
}

} // namespace

TEST_CASE("Tokens of a block see each other to both sides") {
  std::mt19937 engine(3);
  torch::manual_seed(3);
  const auto scope =
      GENERATE(BlockScope::kNone, BlockScope::kCausal, BlockScope::kWindow);
  const int64_t window = GENERATE(0, 1, 3);
  CAPTURE(static_cast<int>(scope), window);
  MultiHeadAttention attention(options_of(scope, window));
  auto plain = without_rule(attention);
  for (int round = 0; round < 6; ++round) {
    const auto ids = random_blocks(2, engine);
    check_padded(
        attention,
        plain,
        ids,
        hidden(ids, scope, window),
        torch::tensor({kTokens, kTokens - 4}));
  }
}

TEST_CASE("Tokens of a block see each other in all heads of a wrapper") {
  std::mt19937 engine(5);
  torch::manual_seed(5);
  const int64_t window = GENERATE(0, 3);
  // More than 255 tokens are projected by all heads at once.
  const int64_t B = GENERATE(2, 30);
  CAPTURE(window, B);
  const auto options = MultiHeadAttentionWrapperOptions(8, 4, kTokens, 3);
  auto causal = options;
  if (window > 0) {
    causal.window(window);
  }
  MultiHeadAttentionWrapper wrapper(causal);
  MultiHeadAttentionWrapper plain(
      MultiHeadAttentionWrapperOptions(options).causal(false));
  {
    const torch::NoGradGuard no_grad;
    auto to = plain->parameters();
    const auto from = wrapper->parameters();
    for (size_t i = 0; i < from.size(); ++i) {
      to[i].copy_(from[i]);
    }
  }
  const auto ids = random_blocks(B, engine);
  check_padded(
      wrapper,
      plain,
      ids,
      hidden(ids, BlockScope::kCausal, window),
      torch::randint(5, kTokens, {B}, torch::kLong));
}

TEST_CASE("Blocks in new tokens of a cache see each other") {
  std::mt19937 engine(4);
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  const auto scope =
      GENERATE(BlockScope::kNone, BlockScope::kCausal, BlockScope::kWindow);
  const int64_t window = GENERATE(0, 2, 5);
  CAPTURE(static_cast<int>(scope), window);
  MultiHeadAttention attention(options_of(scope, window));
  for (int round = 0; round < 6; ++round) {
    const auto x = torch::randn({2, kTokens, 8});
    auto ids = random_blocks(2, engine);
    // The steps begin with text, so that no block lies in two.
    const std::vector<int64_t> ends{4, 9, 10, kTokens};
    for (const auto end : ends) {
      if (end < kTokens) {
        const auto same = ids.select(1, end).eq(ids.select(1, end - 1));
        ids.select(1, end).masked_fill_(same, -1);
        for (int64_t t = end + 1; t < kTokens; ++t) {
          // The tokens that follow are a block of their own.
          ids.select(1, t) += ids.select(1, t).ge(0).to(torch::kLong) * 100;
        }
      }
    }
    const auto expected = attention(x, ForwardOptions().visible_blocks(ids));
    auto cache = attention->make_cache(2);
    std::vector<torch::Tensor> outputs;
    int64_t begin = 0;
    for (const auto end : ends) {
      outputs.push_back(attention->decode(
          x.slice(1, begin, end),
          cache,
          DecodeOptions().visible_blocks(ids.slice(1, begin, end))));
      begin = end;
    }
    CHECK_THAT(torch::cat(outputs, 1), IsCloseTo(expected));
  }
}

TEST_CASE("Blocks of tokens are read after blocks of the cache are freed") {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(7);
  const auto scope = GENERATE(BlockScope::kCausal, BlockScope::kWindow);
  CAPTURE(static_cast<int>(scope));
  constexpr int64_t kLong = 300;
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 8, kLong, 2).window(20).block_scope(scope));
  BlockCache cache(attention->block_cache_options().block_size(64));
  const auto sequence = cache.admit();
  const auto x = torch::randn({1, kLong, 8});
  auto ids = torch::full({1, kLong}, -1, torch::kLong);
  ids.slice(1, 10, 50).fill_(0);
  ids.slice(1, 250, 290).fill_(1);
  std::vector<torch::Tensor> outputs;
  for (int64_t begin = 0; begin < kLong; begin += 50) {
    outputs.push_back(attention->decode(
        x.slice(1, begin, begin + 50),
        cache.batch({sequence}),
        DecodeOptions().visible_blocks(ids.slice(1, begin, begin + 50))));
  }
  CHECK(cache.num_blocks() < kLong / 64);
  CHECK_THAT(
      torch::cat(outputs, 1),
      IsCloseTo(attention(x, ForwardOptions().visible_blocks(ids))));
}

TEST_CASE("Blocks of left-padded and shorter prompts lie with their tokens") {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(5);
  MultiHeadAttention attention(options_of(BlockScope::kCausal, 0));
  const auto x = torch::randn({2, 6, 8});
  const auto ids = torch::tensor(
      {{-1, 0, 0, 0, -1, -1}, {-1, -1, -1, 2, 2, -1}}, torch::kLong);
  const auto alone = [&](int64_t b, int64_t begin, int64_t end) {
    return attention(
        x.slice(0, b, b + 1).slice(1, begin, end),
        ForwardOptions().visible_blocks(
            ids.slice(0, b, b + 1).slice(1, begin, end)));
  };
  const auto lengths = torch::tensor({6, 4});
  auto cache = attention->make_cache(2);
  const auto left = attention->decode(
      x, cache, DecodeOptions(lengths).left_padded(true).visible_blocks(ids));
  CHECK_THAT(left.slice(0, 0, 1), IsCloseTo(alone(0, 0, 6)));
  CHECK_THAT(left.slice(0, 1).slice(1, 2), IsCloseTo(alone(1, 2, 6)));
  auto other = attention->make_cache(2);
  const auto right =
      attention->decode(x, other, DecodeOptions(lengths).visible_blocks(ids));
  CHECK_THAT(right.slice(0, 0, 1), IsCloseTo(alone(0, 0, 6)));
  CHECK_THAT(right.slice(0, 1).slice(1, 0, 4), IsCloseTo(alone(1, 0, 4)));
}

TEST_CASE("Packed sequences have blocks of their own") {
  torch::manual_seed(6);
  MultiHeadAttention attention(options_of(BlockScope::kCausal, 3));
  const auto x = torch::randn({9, 8});
  const auto ids =
      torch::tensor({{0, 0, 0, -1, -1}, {-1, 1, 1, 1, -7}}, torch::kLong);
  const auto packed = attention(
      x,
      ForwardOptions()
          .cu_seqlens(torch::tensor({0, 5, 9}))
          .visible_blocks(ids));
  const auto alone = [&](int64_t b, int64_t begin, int64_t end) {
    return attention(
        x.slice(0, begin, end).unsqueeze(0),
        ForwardOptions().visible_blocks(
            ids.slice(0, b, b + 1).slice(1, 0, end - begin)));
  };
  CHECK_THAT(packed.slice(0, 0, 5), IsCloseTo(alone(0, 0, 5)[0]));
  CHECK_THAT(packed.slice(0, 5, 9), IsCloseTo(alone(1, 5, 9)[0]));
}

TEST_CASE("Modules of one head and of latent keys have blocks") {
  torch::manual_seed(7);
  const auto x = torch::randn({1, 4, 6});
  const auto ids = torch::tensor({{-1, 0, 0, -1}}, torch::kLong);
  const auto call = ForwardOptions().visible_blocks(ids);
  CausalAttention causal(6, 6, 4, 0.0);
  const auto changed = causal(x, call) - causal(x);
  // Token 1 sees token 2; the others see what they saw.
  CHECK(changed[0][1].abs().max().item<double>() > 1e-4);
  CHECK(
      changed[0].index({torch::tensor({0, 2, 3})}).abs().max().item<double>() ==
      0);
  LatentAttention latent(LatentAttentionOptions(6, 6, 4, 2)
                             .kv_rank(4)
                             .nope_dim(2)
                             .rope_dim(2)
                             .value_dim(2));
  const auto expected = latent(x, call);
  auto cache = latent->make_cache(1);
  CHECK_THAT(
      latent->decode(x, cache, DecodeOptions().visible_blocks(ids)),
      IsCloseTo(expected));
}

TEST_CASE("Blocks that do not fit are refused by name") {
  MultiHeadAttention attention(options_of(BlockScope::kCausal, 0));
  const auto x = torch::randn({2, 5, 8});
  const auto with = [](const torch::Tensor& ids) {
    return ForwardOptions().visible_blocks(ids);
  };
  THROWS_WITH(
      attention(x, with(torch::zeros({2, 4}, torch::kLong))),
      "expected int64 visible_blocks of shape (B, T) = [2, 5], but got Long of "
      "shape [2, 4]");
  THROWS_WITH(
      attention(x, with(torch::zeros({2, 5}))),
      "expected int64 visible_blocks of shape (B, T) = [2, 5], but got Float");
  auto cache = attention->make_cache(2);
  THROWS_WITH(
      attention->decode(
          x,
          cache,
          DecodeOptions().visible_blocks(torch::zeros({2, 1}, torch::kLong))),
      "expected int64 visible_blocks of shape (B, T) = [2, 5]");
  CHECK(cache.lengths().max().item<int64_t>() == 0);
  const auto ids = torch::zeros({2, 5}, torch::kLong);
  MultiHeadAttention chunked(options_of(BlockScope::kCausal, 0).chunk(2));
  THROWS_WITH(chunked(x, with(ids)), "expected no visible_blocks beside chunk");
  MultiHeadAttention alibi(
      MultiHeadAttentionOptions(8, 8, kTokens, 2).alibi(true));
  THROWS_WITH(alibi(x, with(ids)), "expected no visible_blocks beside alibi");
  CrossAttention cross(CrossAttentionOptions(8, 8, 8, 2));
  THROWS_WITH(
      cross(x, x, with(ids)),
      "expected no visible_blocks, since it attends to a context");
  MultiHeadAttention needing(
      options_of(BlockScope::kWindow, 0).needs_blocks(true));
  THROWS_WITH(needing(x), "expected visible_blocks (needs_blocks)");
  auto empty = needing->make_cache(2);
  THROWS_WITH(
      needing->decode(x, empty), "expected visible_blocks (needs_blocks)");
  CHECK_NOTHROW(needing(x, with(ids.sub(1))));
  CHECK_NOTHROW(needing->decode(x.slice(1, 0, 1), empty));
}

} // namespace visible_blocks_test
