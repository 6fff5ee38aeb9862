#include <support/cache_contents.h>
#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <limits>
#include <optional>
#include <vector>

namespace kv_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

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

} // namespace

TEST_CASE("A part of a cache keeps its tokens alternately") {
  const auto part = GENERATE(int64_t{0}, int64_t{1}, int64_t{2});
  KVCache cache(small(2).num_parts(3).part(part).max_length(50));
  const auto check = [&] {
    for (int64_t b = 0; b < 2; ++b) {
      const auto length = cache.lengths()[b].item<int64_t>();
      const auto expected = torch::arange(part, length, 3).to(torch::kFloat);
      const auto rows = [&](const torch::Tensor& x) {
        return x[b][0].slice(0, 0, expected.size(0)).squeeze(-1).contiguous();
      };
      CHECK_THAT(rows(cache.keys()), IsEqualTo(expected));
      CHECK_THAT(rows(cache.values()), IsEqualTo(-expected));
    }
  };
  append_positions(cache, 7, torch::tensor({7, 2}));
  check();
  append_positions(cache, 1);
  append_positions(cache, 10, torch::tensor({0, 10}));
  check();
  CHECK_THAT(cache.lengths(), IsEqualTo(torch::tensor({8, 13})));
  cache.truncate(torch::tensor({5, 9}));
  append_positions(cache, 4);
  check();
  cache.reserve(50);
  CHECK(cache.capacity() == (part == 2 ? 16 : 17));
  append_positions(cache, 37);
  check();
  CHECK_THROWS(append_positions(cache, 1));
  CHECK_THROWS(KVCache(small(2).num_parts(3).part(3)));
  CHECK_THROWS(KVCache(small(2).num_parts(3).window(4)));
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

TEST_CASE("A cache counts its longest text until it is empty") {
  KVCache cache(KVCacheOptions(2, 1, 4));
  const auto rows = torch::ones({2, 1, 5, 4});
  CHECK(cache.peak_length() == 0);
  cache.append(rows, rows, torch::tensor({2, 5}));
  CHECK(cache.peak_length() == 5);
  cache.truncate(torch::tensor({1, 0}));
  CHECK(cache.peak_length() == 5);
  CHECK(cache.clone().peak_length() == 5);
  cache.reset();
  cache.append(rows, rows, torch::tensor({3, 0}));
  CHECK(cache.peak_length() == 3);
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
        "KVCache: expected a floating-point dtype or torch::kInt8, but got Long");
    check_unchanged(cache, before);
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
      "expected a floating-point dtype or torch::kInt8, but got Int");
}

} // namespace kv_cache_test
