#include <support/close.h>
#include <support/decode.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace kv_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr auto kKernels = {Kernel::kReference, Kernel::kFused, Kernel::kAuto};

/// Everything that a cache holds, without what lies after a sequence's rows.
struct Contents {
  std::vector<torch::Tensor> keys;
  std::vector<torch::Tensor> values;
  torch::Tensor lengths;
  torch::Tensor starts;
};

Contents contents(const KVCache& cache) {
  Contents all;
  all.lengths = cache.lengths().clone();
  all.starts = cache.starts().clone();
  const auto rows = all.lengths - all.starts;
  for (int64_t b = 0; b < rows.size(0); ++b) {
    const auto n = rows[b].item<int64_t>();
    all.keys.push_back(cache.keys()[b].slice(1, 0, n).clone());
    all.values.push_back(cache.values()[b].slice(1, 0, n).clone());
  }
  return all;
}

void check_unchanged(const KVCache& cache, const Contents& before) {
  const auto now = contents(cache);
  CHECK_THAT(now.lengths, IsEqualTo(before.lengths));
  CHECK_THAT(now.starts, IsEqualTo(before.starts));
  for (size_t b = 0; b < now.keys.size(); ++b) {
    CHECK_THAT(now.keys[b], IsEqualTo(before.keys[b]));
    CHECK_THAT(now.values[b], IsEqualTo(before.values[b]));
  }
}

/// A cache of one key and value head of size 1, whose keys are positions and
/// whose values are their negatives.
KVCacheOptions small(int64_t batch_size) {
  return KVCacheOptions(batch_size, 1, 1).block(4);
}

/// Appends the next `T` positions to each sequence, of which it takes the first
/// `new_lengths`.
void append_positions(
    KVCache& cache,
    int64_t T,
    const torch::Tensor& new_lengths = {}) {
  const auto positions =
      (cache.lengths().unsqueeze(1) + torch::arange(T)).to(torch::kFloat);
  const auto rows = positions.unsqueeze(1).unsqueeze(3);
  cache.append(rows, -rows, new_lengths);
}

/// Checks that the rows are the positions from `starts` on.
void check_positions(const KVCache& cache) {
  const auto starts = cache.starts();
  const auto lengths = cache.lengths();
  for (int64_t b = 0; b < lengths.size(0); ++b) {
    const auto first = starts[b].item<int64_t>();
    const auto end = lengths[b].item<int64_t>();
    const auto expected = torch::arange(first, end).to(torch::kFloat);
    const auto rows = [&](const torch::Tensor& x) {
      return x[b][0].slice(0, 0, end - first).squeeze(-1).contiguous();
    };
    CHECK_THAT(rows(cache.keys()), IsEqualTo(expected));
    CHECK_THAT(rows(cache.values()), IsEqualTo(-expected));
  }
}

torch::Tensor counts(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kLong);
}

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

TEST_CASE("A cache keeps what is appended to it") {
  SECTION("as it grows, in whole blocks") {
    KVCache cache(small(2));
    CHECK(cache.capacity() == 0);
    CHECK_THAT(cache.keys(), HasShape({2, 1, 0, 1}));
    int64_t moves = 0;
    for (int64_t length = 1; length <= 500; ++length) {
      const auto before = cache.capacity();
      append_positions(cache, 1);
      CHECK(cache.capacity() >= length);
      CHECK(cache.capacity() <= std::max<int64_t>(4, length + length / 2 + 4));
      CHECK(cache.capacity() % 4 == 0);
      moves += cache.capacity() == before ? 0 : 1;
    }
    CHECK(moves < 20);
    check_positions(cache);
    CHECK_THAT(cache.keys(), HasShape({2, 1, 500, 1}));
  }
  SECTION("up to max_length and no further") {
    KVCache cache(small(1).max_length(10));
    append_positions(cache, 9);
    CHECK(cache.capacity() == 10);
    append_positions(cache, 1);
    CHECK(cache.capacity() == 10);
    check_positions(cache);
  }
  SECTION("where it was, once reserved") {
    KVCache cache(small(1).max_length(100));
    cache.reserve(50);
    CHECK(cache.capacity() == 50);
    CHECK(cache.nbytes() == 2 * 50 * sizeof(float));
    append_positions(cache, 1);
    const auto* memory = cache.keys().const_data_ptr();
    for (int i = 1; i < 50; ++i) {
      append_positions(cache, 1);
    }
    CHECK(cache.keys().const_data_ptr() == memory);
    cache.reserve(10);
    CHECK(cache.capacity() == 50);
    check_positions(cache);
  }
  SECTION("for each sequence its own number") {
    KVCache cache(small(3));
    append_positions(cache, 5, counts({5, 0, 2}));
    append_positions(cache, 3, counts({1, 3, 0}).to(torch::kInt));
    append_positions(cache, 1);
    append_positions(cache, 0);
    CHECK_THAT(cache.lengths(), IsEqualTo(counts({7, 4, 3})));
    CHECK_THAT(cache.keys(), HasShape({3, 1, 7, 1}));
    check_positions(cache);
  }
  SECTION("with a window, its last tokens in order") {
    const auto window = GENERATE(1, 2, 4, 9);
    CAPTURE(window);
    KVCache cache(small(2).window(window));
    torch::manual_seed(5);
    for (int i = 0; i < 200; ++i) {
      const auto T = torch::randint(1, 9, {1}).item<int64_t>();
      append_positions(cache, T, torch::randint(0, T + 1, {2}, torch::kLong));
      check_positions(cache);
      const auto rows = cache.lengths() - cache.starts();
      CHECK((rows >= cache.lengths().clamp_max(window - 1)).all().item<bool>());
      CHECK(cache.capacity() <= window - 1 + 4 + std::max<int64_t>(T, 4));
    }
    CHECK((cache.starts() > 100).all().item<bool>());
  }
  SECTION("with the largest window and block that there are") {
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    KVCache cache(small(1).window(kMost).max_length(kMost));
    append_positions(cache, 6);
    check_positions(cache);
    KVCache whole(small(1).block(kMost).max_length(6));
    append_positions(whole, 1);
    CHECK(whole.capacity() == 6);
  }
}

TEST_CASE("A cache takes back up to a block of tokens, window or not") {
  KVCache cache(small(2).window(3));
  for (int i = 0; i < 60; ++i) {
    append_positions(cache, 4);
    cache.truncate(counts({4 * i, 4 * i + 4}).clamp_min(0));
    check_positions(cache);
    append_positions(cache, 4, counts({4, 0}));
    check_positions(cache);
  }
}

TEST_CASE("What cannot be truncated is refused") {
  KVCache cache(small(2).window(5));
  append_positions(cache, 40);
  append_positions(cache, 1);
  const auto start = cache.starts()[0].item<int64_t>();
  REQUIRE(start > 0);
  const auto before = contents(cache);
  THROWS_WITH(
      cache.truncate(start + 3),
      c10::str(
          "KVCache: expected to truncate sequence 0 to 0 or at least ",
          start + 4,
          " tokens, since the first ",
          start,
          " are dropped (window), but got ",
          start + 3));
  THROWS_WITH(
      cache.truncate(counts({41, 1})), "expected to truncate sequence 1");
  THROWS_WITH(cache.truncate(-1), "0 tokens or more, but got -1");
  THROWS_WITH(
      cache.truncate(counts({1})),
      "KVCache: expected lengths of an integer dtype and shape (batch_size) = "
      "[2], but got Long of shape [1]");
  THROWS_WITH(cache.truncate(torch::rand({2})), "but got Float");
  THROWS_WITH(cache.truncate(torch::Tensor()), "the lengths are undefined");
  check_unchanged(cache, before);
  cache.truncate(start + 4);
  check_positions(cache);
  cache.truncate(0);
  CHECK_THAT(cache.starts(), IsEqualTo(counts({0, 0})));
  append_positions(cache, 3);
  check_positions(cache);
}

TEST_CASE("An append that is refused leaves the cache as it was") {
  KVCache cache(KVCacheOptions(2, 3, 4).max_length(8));
  torch::manual_seed(6);
  cache.append(
      torch::randn({2, 3, 5, 4}), torch::randn({2, 3, 5, 4}), counts({5, 3}));
  const auto before = contents(cache);
  const auto capacity = cache.capacity();
  const auto rows = [](int64_t T) { return torch::randn({2, 3, T, 4}); };
  THROWS_WITH(
      cache.append(rows(4), rows(4)),
      "KVCache: expected at most 8 tokens (max_length), but got 4 new ones for "
      "sequence 0, which has 5; the cache is unchanged");
  THROWS_WITH(
      cache.append(rows(7), rows(7), counts({0, 6})),
      "but got 6 new ones for sequence 1, which has 3");
  THROWS_WITH(
      cache.append(torch::rand({2, 1, 1, 4}), rows(1)),
      "KVCache: expected keys of shape (batch_size, num_kv_heads, T, head_dim) "
      "= (2, 3, T, 4), but got [2, 1, 1, 4]");
  THROWS_WITH(
      cache.append(rows(1), torch::rand({2, 3, 4})),
      "expected values of shape");
  THROWS_WITH(
      cache.append(rows(1), rows(2)),
      "expected as many keys as values, but got keys [2, 3, 1, 4], values [2, "
      "3, 2, 4]");
  THROWS_WITH(cache.append({}, rows(1)), "the keys are undefined");
  THROWS_WITH(
      cache.append(rows(1).to(torch::kLong), rows(1)),
      "expected floating-point keys on cpu, where the cache is, but got Long "
      "on cpu");
  THROWS_WITH(cache.append(rows(1), rows(1).to(torch::kMeta)), "on meta");
  THROWS_WITH(
      cache.append(rows(1), rows(1), counts({1, 2})),
      "KVCache: expected new_lengths in [0, 1], but got 2 for sequence 1");
  THROWS_WITH(
      cache.append(rows(1), rows(1), counts({-1, 1})),
      "but got -1 for sequence 0");
  THROWS_WITH(
      cache.append(rows(1), rows(1), counts({1})),
      "expected new_lengths of an integer dtype and shape (batch_size) = [2], "
      "but got Long of shape [1]");
  THROWS_WITH(
      cache.reserve(9),
      "expected to reserve between 0 and 8 tokens (max_length), but got 9");
  check_unchanged(cache, before);
  CHECK(cache.capacity() == capacity);
}

TEST_CASE("Memory that runs out leaves the cache as it was") {
  const std::optional<int64_t> window =
      GENERATE(std::optional<int64_t>(), std::optional<int64_t>(3));
  CAPTURE(window.has_value());
  KVCache cache(small(2).window(window));
  append_positions(cache, 6);
  append_positions(cache, 6);
  const auto new_lengths =
      GENERATE(torch::Tensor(), torch::tensor({7, 20}, torch::kLong));
  const auto keys = torch::arange(12, 32)
                        .to(torch::kFloat)
                        .view({1, 1, 20, 1})
                        .expand({2, 1, 20, 1});
  const auto values = -keys;
  const auto before = contents(cache);
  const auto capacity = cache.capacity();
  bool appended = false;
  int64_t failures = 0;
  while (!appended) {
    {
      const FailingAllocator allocator(failures);
      try {
        cache.append(keys, values, new_lengths);
        appended = true;
      } catch (const c10::Error&) {
        ++failures;
      }
    }
    if (!appended) {
      check_unchanged(cache, before);
      CHECK(cache.capacity() == capacity);
    }
  }
  CHECK(failures >= 2);
  check_positions(cache);
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

TEST_CASE("A cache moves to another dtype and device") {
  torch::manual_seed(8);
  MultiHeadAttention attention(MultiHeadAttentionOptions(8, 16, 12, 2));
  attention->eval();
  const auto x = torch::randn({2, 12, 8});
  auto cache = attention->make_cache(2);
  attention->decode(x.slice(1, 0, 6), cache, counts({6, 5}));
  const auto before = contents(cache);

  SECTION("and back") {
    cache.to(torch::kDouble);
    CHECK(cache.keys().scalar_type() == torch::kDouble);
    CHECK(cache.options().dtype() == torch::kDouble);
    CHECK_THAT(cache.lengths(), IsEqualTo(before.lengths));
    cache.to(torch::kFloat);
    check_unchanged(cache, before);
    cache.to(torch::kCPU);
    check_unchanged(cache, before);
  }
  SECTION("with half the bytes") {
    const auto bytes = cache.nbytes();
    cache.to(torch::kBFloat16);
    CHECK(cache.nbytes() == bytes / 2);
    // The module stays as it is; only keys and values are rounded.
    const auto output = attention->decode(x.slice(1, 6, 7), cache);
    CHECK(output.scalar_type() == torch::kFloat);
    CHECK_THAT(
        output[0],
        IsCloseTo(attention(x)[0].slice(0, 6, 7), Tolerance(1.6e-2, 1.6e-2)));
  }
  SECTION("with the module, in double") {
    attention->to(torch::kDouble);
    cache.to(torch::kDouble);
    const auto output =
        attention->decode(x.slice(1, 6, 12).to(torch::kDouble), cache);
    CHECK_THAT(
        output[0],
        IsCloseTo(
            attention(x.to(torch::kDouble))[0].slice(0, 6),
            Tolerance(1e-5, 1e-5)));
  }
  SECTION("and keeps its lengths on the CPU") {
    cache.to(torch::kMeta, torch::kHalf);
    CHECK(cache.keys().is_meta());
    CHECK(cache.options().device() == torch::kMeta);
    CHECK(cache.options().dtype() == torch::kHalf);
    CHECK_THAT(cache.lengths(), IsEqualTo(before.lengths));
  }
  SECTION("to the GPU, if there is one") {
    if (torch::cuda::is_available()) {
      const auto expected = attention(x);
      attention->to(torch::kCUDA);
      cache.to(torch::kCUDA);
      const auto output =
          attention->decode(x.slice(1, 6, 12).to(torch::kCUDA), cache);
      CHECK_THAT(
          output[0], IsCloseTo(expected[0].slice(0, 6), Tolerance(1e-4, 1e-4)));
    }
  }
  SECTION("but not to integers") {
    THROWS_WITH(
        cache.to(torch::kLong),
        "KVCache: expected a floating-point dtype, but got Long");
    check_unchanged(cache, before);
  }
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

TEST_CASE("Rows that stand for others are written as what they are") {
  torch::manual_seed(13);
  // Alike, which is one copy, and each to its own place.
  const auto lengths =
      GENERATE(std::vector<int64_t>{3, 3}, std::vector<int64_t>{3, 1});
  const auto rows = torch::randn({2, 2, 3, 4});
  const auto negative = at::_neg_view(-rows);
  REQUIRE(negative.is_neg());
  const auto cache_of = [&](const torch::Tensor& keys) {
    KVCache cache(KVCacheOptions(2, 2, 4).block(4).dtype(torch::kDouble));
    cache.append(keys, 2 * keys, torch::tensor(lengths));
    cache.append(2 * keys, keys, torch::tensor(lengths));
    return cache;
  };
  check_unchanged(cache_of(negative), contents(cache_of(rows)));
}

TEST_CASE("A cache is reordered for beam search") {
  torch::manual_seed(11);
  const auto window = GENERATE(std::optional<int64_t>(), std::optional(3));
  CAPTURE(window.value_or(0));
  KVCache cache(KVCacheOptions(4, 2, 3).block(4).window(window));
  const auto append = [&](const torch::Tensor& lengths) {
    const auto rows = torch::randn({4, 2, 8, 3});
    cache.append(rows, -rows, lengths);
  };
  append(counts({8, 5, 0, 2}));
  append(counts({8, 1, 3, 2}));
  const auto before = contents(cache);

  SECTION("by places that change, are taken twice, or go") {
    const auto sources = GENERATE(
        std::vector<int64_t>{1, 0, 2, 3},
        std::vector<int64_t>{0, 0, 0, 0},
        std::vector<int64_t>{3, 2, 1, 0},
        std::vector<int64_t>{1, 2, 3, 3});
    cache.reorder(torch::tensor(sources, torch::kInt));
    const auto index = torch::tensor(sources);
    CHECK_THAT(
        cache.lengths(), IsEqualTo(before.lengths.index_select(0, index)));
    CHECK_THAT(cache.starts(), IsEqualTo(before.starts.index_select(0, index)));
    const auto now = contents(cache);
    for (size_t b = 0; b < 4; ++b) {
      const auto source = static_cast<size_t>(sources[b]);
      CHECK_THAT(now.keys[b], IsEqualTo(before.keys[source]));
      CHECK_THAT(now.values[b], IsEqualTo(before.values[source]));
    }
  }
  SECTION("and stays as it is if nothing moves") {
    const auto* memory = cache.keys().const_data_ptr();
    cache.reorder(torch::arange(4));
    check_unchanged(cache, before);
    CHECK(cache.keys().const_data_ptr() == memory);
  }
  SECTION("or is left unchanged") {
    THROWS_WITH(
        cache.reorder(counts({0, 1, 2, 4})),
        "expected sources in [0, 3], but got 4 for sequence 3");
    THROWS_WITH(cache.reorder(counts({0, 1, 2})), "shape (batch_size) = [4]");
    THROWS_WITH(cache.reorder(torch::Tensor()), "the sources are undefined");
    check_unchanged(cache, before);
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

TEST_CASE("A clone of a cache goes its own way") {
  KVCache cache(small(1));
  append_positions(cache, 3);
  const auto before = contents(cache);
  auto copy = cache.clone();
  check_unchanged(copy, before);
  copy.append(torch::ones({1, 1, 1, 1}), torch::ones({1, 1, 1, 1}));
  check_unchanged(cache, before);
  const auto moved = std::move(cache);
  check_unchanged(moved, before);
}

TEST_CASE("Options that make no cache are refused") {
  THROWS_WITH(
      KVCache(KVCacheOptions(0, 1, 1)),
      "KVCache: expected batch_size > 0, but got 0");
  THROWS_WITH(KVCache(KVCacheOptions(1, -1, 1)), "expected num_kv_heads > 0");
  THROWS_WITH(KVCache(KVCacheOptions(1, 1, 0)), "expected head_dim > 0");
  THROWS_WITH(KVCache(KVCacheOptions(1, 1, 1).block(0)), "expected block > 0");
  THROWS_WITH(
      KVCache(KVCacheOptions(1, 1, 1).max_length(0)),
      "expected max_length > 0");
  THROWS_WITH(
      KVCache(KVCacheOptions(1, 1, 1).window(0)), "expected window > 0");
  THROWS_WITH(
      KVCache(KVCacheOptions(1, 1, 1).dtype(torch::kInt)),
      "expected a floating-point dtype, but got Int");
}

} // namespace kv_cache_test
