#include <support/cache_contents.h>
#include <support/close.h>
#include <support/decode.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <algorithm>
#include <vector>

namespace decode_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr auto kKernels = {Kernel::kReference, Kernel::kFused, Kernel::kAuto};

/// Small modules of every kind that decodes.
std::vector<MultiHeadAttentionOptions> every_kind(int64_t context_length) {
  const MultiHeadAttentionOptions plain(12, 32, context_length, 4);
  auto grouped = plain;
  grouped.num_kv_heads(2).qkv_bias(true).scale(0.4);
  auto one_head = plain;
  one_head.num_kv_heads(1).out_proj(false);
  auto rotary = plain;
  rotary.num_kv_heads(2).rotary(RotaryOptions());
  auto window = plain;
  window.window(5);
  auto all = grouped;
  all.window(3).rotary(
      RotaryOptions().dim(4).pairing(RotaryPairing::kInterleaved));
  return {plain, grouped, one_head, rotary, window, all};
}

/// One of `every_kind`, in evaluation.
MultiHeadAttention make_module(
    size_t kind,
    Kernel kernel,
    int64_t context_length) {
  MultiHeadAttention attention(every_kind(context_length)[kind].kernel(kernel));
  attention->eval();
  return attention;
}

/// A small block lets the cache grow, and, with a window, move often.
KVCache make_cache(
    const MultiHeadAttention& attention,
    int64_t batch_size,
    int64_t block) {
  auto options = attention->make_cache(batch_size).options();
  return KVCache(options.block(block));
}

const Tolerance kSame(1e-6, 1e-6);

} // namespace

TEST_CASE("Decoding in parts equals one pass over all") {
  constexpr int64_t kTokens = 40;
  const auto kernel = GENERATE(values(kKernels));
  const size_t kind = GENERATE(range(0U, 6U));
  torch::manual_seed(1);
  auto attention = make_module(kind, kernel, kTokens);
  const auto x = torch::randn({3, kTokens, 12});
  const auto expected = attention(x);
  auto cache = make_cache(attention, 3, GENERATE(2, 256));
  CAPTURE(kernel, kind, cache.options().block());

  SECTION("token by token") {
    CHECK_THAT(
        decode_in_chunks(attention, cache, x, {1}), IsCloseTo(expected, kSame));
  }
  SECTION("a prompt, then token by token") {
    CHECK_THAT(
        decode_in_chunks(attention, cache, x, {17, 1}),
        IsCloseTo(expected, kSame));
  }
  SECTION("in chunks") {
    CHECK_THAT(
        decode_in_chunks(attention, cache, x, {3, 1, 9, 2, 7}),
        IsCloseTo(expected, kSame));
  }
  SECTION("all at once") {
    CHECK_THAT(
        decode_in_chunks(attention, cache, x, {kTokens}),
        IsCloseTo(expected, kSame));
  }
  CHECK_THAT(cache.lengths(), IsEqualTo(counts({kTokens, kTokens, kTokens})));
  cache.reset();
  CHECK_THAT(
      decode_in_chunks(attention, cache, x, {5, 1}),
      IsCloseTo(expected, kSame));
}

TEST_CASE("Sequences of different lengths decode side by side") {
  constexpr int64_t kTokens = 24;
  const auto kernel = GENERATE(values(kKernels));
  const size_t kind = GENERATE(range(0U, 6U));
  torch::manual_seed(2);
  auto attention = make_module(kind, kernel, kTokens);
  const auto x = torch::randn({3, kTokens, 12});
  const auto expected = attention(x);
  auto cache = make_cache(attention, 3, 2);
  CAPTURE(kernel, kind);

  // The next tokens of each sequence, padded with NaN on the right.
  const auto step = [&](const std::vector<int64_t>& new_lengths) {
    const auto T = *std::max_element(new_lengths.begin(), new_lengths.end());
    const auto before = cache.lengths();
    auto input = torch::full({3, T, 12}, std::nan(""));
    for (int64_t b = 0; b < 3; ++b) {
      const auto begin = before[b].item<int64_t>();
      const auto n = new_lengths[static_cast<size_t>(b)];
      input[b].slice(0, 0, n).copy_(x[b].slice(0, begin, begin + n));
    }
    const auto output = attention->decode(input, cache, counts(new_lengths));
    for (int64_t b = 0; b < 3; ++b) {
      const auto begin = before[b].item<int64_t>();
      const auto n = new_lengths[static_cast<size_t>(b)];
      CHECK_THAT(
          output[b].slice(0, 0, n),
          IsCloseTo(expected[b].slice(0, begin, begin + n), kSame));
    }
  };
  step({7, 1, 12});
  for (int i = 0; i < 3; ++i) {
    step({1, 1, 1});
  }
  step({3, 0, 2});
  step({0, 11, 0});
  step({1, 1, 1});
  CHECK_THAT(cache.lengths(), IsEqualTo(counts({14, 16, 18})));
}

TEST_CASE("Truncated sequences are decoded again") {
  constexpr int64_t kTokens = 30;
  const auto kernel = GENERATE(values(kKernels));
  const size_t kind = GENERATE(range(0U, 6U));
  torch::manual_seed(3);
  auto attention = make_module(kind, kernel, kTokens);
  CAPTURE(kernel, kind);
  const auto x = torch::randn({2, kTokens, 12});
  const auto other = torch::randn({2, kTokens, 12});
  const auto expected = attention(x);
  auto cache = make_cache(attention, 2, 6);
  decode_in_chunks(attention, cache, x.slice(1, 0, 20), {4, 1});

  SECTION("all to one length") {
    // Up to `block` tokens come back, with a window as well.
    attention->decode(other.slice(1, 0, 6), cache);
    cache.truncate(20);
    CHECK_THAT(cache.lengths(), IsEqualTo(counts({20, 20})));
    CHECK_THAT(
        decode_in_chunks(attention, cache, x.slice(1, 20), {1, 3}),
        IsCloseTo(expected.slice(1, 20), kSame));
  }
  SECTION("each to its own") {
    attention->decode(other.slice(1, 0, 2), cache);
    cache.truncate(counts({20, 19}));
    CHECK_THAT(cache.lengths(), IsEqualTo(counts({20, 19})));
    const auto input =
        torch::stack({x[0].slice(0, 20, 24), x[1].slice(0, 19, 23)});
    const auto output = attention->decode(input, cache);
    CHECK_THAT(output[0], IsCloseTo(expected[0].slice(0, 20, 24), kSame));
    CHECK_THAT(output[1], IsCloseTo(expected[1].slice(0, 19, 23), kSame));
  }
  SECTION("one of them to nothing, for a new text") {
    cache.truncate(counts({0, kTokens}));
    CHECK_THAT(cache.lengths(), IsEqualTo(counts({0, 20})));
    const auto input =
        torch::stack({x[0].slice(0, 0, 5), x[1].slice(0, 20, 25)});
    const auto output = attention->decode(input, cache);
    CHECK_THAT(output[0], IsCloseTo(expected[0].slice(0, 0, 5), kSame));
    CHECK_THAT(output[1], IsCloseTo(expected[1].slice(0, 20, 25), kSame));
  }
}

TEST_CASE("Decoding goes on forever in the memory of a window") {
  constexpr int64_t kTokens = 400;
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  torch::manual_seed(4);
  MultiHeadAttention attention(MultiHeadAttentionOptions(8, 16, kTokens, 2)
                                   .window(7)
                                   .register_mask(false)
                                   .kernel(kernel));
  attention->eval();
  const auto x = torch::randn({2, kTokens, 8});
  const auto expected = attention(x);
  auto options = attention->make_cache(2).options();
  options.block(8);
  KVCache cache(options);
  int64_t begin = 0;
  for (const int64_t T : {1, 1, 2, 30, 1, 100, 1, 1, 8, 9, 50}) {
    CAPTURE(begin, T);
    CHECK_THAT(
        attention->decode(x.slice(1, begin, begin + T), cache),
        IsCloseTo(expected.slice(1, begin, begin + T), kSame));
    begin += T;
    CHECK(cache.capacity() <= 7 - 1 + 8 + std::max<int64_t>(T, 8));
  }
  CHECK_THAT(
      decode_in_chunks(attention, cache, x.slice(1, begin), {1}),
      IsCloseTo(expected.slice(1, begin), kSame));
  CHECK(cache.capacity() <= 7 - 1 + 8 + 8);
  CHECK(
      cache.nbytes() ==
      2 * 2 * 2 * 8 * sizeof(float) * static_cast<size_t>(cache.capacity()));
}

TEST_CASE("A decode that fails leaves the cache as it was") {
  torch::manual_seed(7);
  const bool with_window = GENERATE(false, true);
  auto options = MultiHeadAttentionOptions(8, 16, 12, 2);
  if (with_window) {
    options.window(3);
  }
  MultiHeadAttention attention(options);
  attention->eval();
  auto cache = make_cache(attention, 2, 4);
  const auto x = torch::randn({2, 12, 8});
  attention->decode(x.slice(1, 0, 9), cache, counts({9, 4}));
  const auto before = contents(cache);

  SECTION("for more tokens than context_length") {
    THROWS_WITH(
        attention->decode(x.slice(1, 0, 4), cache),
        "MultiHeadAttention: expected at most 12 tokens (context_length), but "
        "got 4 new ones for sequence 0 of the cache, which has 9; the cache is "
        "unchanged");
    THROWS_WITH(
        attention->decode(torch::rand({2, 13, 8}), cache),
        "expected at most 12 tokens (context_length), but got 13");
  }
  SECTION("for an input that does not fit") {
    THROWS_WITH(
        attention->decode(torch::rand({2, 8}), cache),
        "MultiHeadAttention: expected input of shape (B, T, 8)");
    THROWS_WITH(
        attention->decode(torch::rand({3, 1, 8}), cache),
        "MultiHeadAttention: expected input of as many sequences as the cache "
        "has, 2, but got 3");
    THROWS_WITH(
        attention->decode(torch::rand({2, 1, 8}), cache, counts({1, 2})),
        "MultiHeadAttention: expected new_lengths in [0, 1], but got 2 for "
        "sequence 1");
  }
  SECTION("for a module that cannot decode") {
    attention->options.causal(false);
    THROWS_WITH(
        attention->decode(torch::rand({2, 1, 8}), cache),
        "MultiHeadAttention: expected causal = true for decode");
    attention->options.causal(true);
    attention->dropout->options.p(0.1);
    attention->train();
    THROWS_WITH(
        attention->decode(torch::rand({2, 1, 8}), cache),
        "MultiHeadAttention: expected evaluation for decode, which has no "
        "dropout, but got training with dropout = 0.1; call eval()");
  }
  SECTION("for want of memory, wherever it ends") {
    bool decoded = false;
    const auto input = x.slice(1, 0, 3);
    torch::Tensor output;
    for (int64_t successes = 0; !decoded; ++successes) {
      {
        const FailingAllocator allocator(successes);
        try {
          output = attention->decode(input, cache);
          decoded = true;
        } catch (const c10::Error&) {
        }
      }
      if (!decoded) {
        check_unchanged(cache, before);
      }
    }
    const auto text = torch::cat({x[0].slice(0, 0, 9), input[0]}).unsqueeze(0);
    CHECK_THAT(output[0], IsCloseTo(attention(text)[0].slice(0, 9), kSame));
    return;
  }
  check_unchanged(cache, before);
}

TEST_CASE("A module refuses a cache that was made for another") {
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 16, 12, 4).num_kv_heads(2).window(6));
  const auto x = torch::rand({1, 1, 8});
  KVCache heads(KVCacheOptions(1, 4, 4));
  THROWS_WITH(
      attention->decode(x, heads),
      "MultiHeadAttention: expected a cache of num_kv_heads = 2, head_dim = 4 "
      "and value_dim = 4, but got 4, 4 and 4; make_cache makes one that fits");
  KVCache narrow(KVCacheOptions(1, 2, 4).window(5));
  THROWS_WITH(
      attention->decode(x, narrow),
      "expected a cache that keeps all tokens or at least the window of 6, but "
      "got one of window = 5");
  KVCache elsewhere(KVCacheOptions(1, 2, 4).device(torch::kMeta));
  THROWS_WITH(
      attention->decode(x, elsewhere),
      "expected a cache on cpu, where the weights are, but got one on meta");
  KVCache wide(KVCacheOptions(1, 2, 4).window(7));
  CHECK_THAT(attention->decode(x, wide), HasShape({1, 1, 16}));
  KVCache all(KVCacheOptions(1, 2, 4));
  CHECK_THAT(attention->decode(x, all), HasShape({1, 1, 16}));
}

TEST_CASE("make_cache fits the module") {
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 24, 100, 6).num_kv_heads(3).window(20));
  attention->to(torch::kBFloat16);
  const auto cache = attention->make_cache(5);
  CHECK(cache.options().batch_size() == 5);
  CHECK(cache.options().num_kv_heads() == 3);
  CHECK(cache.options().head_dim() == 4);
  CHECK(cache.options().max_length() == 100);
  CHECK(cache.options().window() == 20);
  CHECK(cache.options().dtype() == torch::kBFloat16);
  CHECK(cache.options().device() == torch::kCPU);
  CHECK(cache.capacity() == 0);
  THROWS_WITH(
      attention->make_cache(0), "KVCache: expected batch_size > 0, but got 0");
}

TEST_CASE("Decoding is no part of an autograd graph") {
  torch::manual_seed(9);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 16, 12, 2).rotary(RotaryOptions()));
  attention->eval();
  const auto x = torch::randn({2, 6, 8}).requires_grad_();
  auto cache = attention->make_cache(2);
  const auto expected = attention(x);
  CHECK_FALSE(attention->decode(x, cache).requires_grad());
  CHECK_FALSE(cache.keys().requires_grad());
  CHECK_FALSE(cache.values().requires_grad());

  SECTION("and goes in and out of inference mode") {
    auto other = attention->make_cache(2);
    {
      const c10::InferenceMode inference;
      attention->decode(x.slice(1, 0, 2), other);
    }
    attention->decode(x.slice(1, 2, 3), other);
    torch::Tensor last;
    {
      const c10::InferenceMode inference;
      last = attention->decode(x.slice(1, 3, 6), other).clone();
    }
    CHECK_THAT(last, IsCloseTo(expected.detach().slice(1, 3), kSame));
  }
}

TEST_CASE("Beams that were reordered go on as their sources would") {
  torch::manual_seed(12);
  MultiHeadAttention attention(MultiHeadAttentionOptions(6, 8, 20, 2));
  attention->eval();
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({3, 12, 6});
  const auto sources = torch::tensor({2, 0, 2}, torch::kLong);
  auto cache = attention->make_cache(3);
  attention->decode(x.slice(1, 0, 7), cache);
  cache.reorder(sources);
  const auto next = torch::randn({3, 2, 6});
  const auto whole =
      torch::cat({x.slice(1, 0, 7).index_select(0, sources), next}, 1);
  CHECK_THAT(
      attention->decode(next, cache),
      IsCloseTo(attention(whole).slice(1, 7), kSame));
}

} // namespace decode_test
