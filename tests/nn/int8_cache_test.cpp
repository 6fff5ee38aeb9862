#include <support/cache_contents.h>
#include <support/close.h>
#include <support/test.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace int8_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

/// Returns what int8 makes of the rows of x, by operators.
torch::Tensor rounded(const torch::Tensor& x) {
  const auto numbers = x.to(torch::kFloat);
  const auto scale = numbers.abs().amax(-1, /*keepdim=*/true) / 127;
  return torch::where(
      scale > 0,
      // Integers have no -0.
      ((numbers / scale).round().clamp(-127, 127) + 0) * scale,
      torch::zeros_like(numbers));
}

double relative_error(const torch::Tensor& x, const torch::Tensor& expected) {
  return ((x - expected).norm() / expected.norm()).item<double>();
}

/// Two caches with one life: one of int8, and one of float32 that gets the
/// rounded numbers.
struct Twins {
  KVCache int8;
  KVCache plain;

  explicit Twins(KVCacheOptions options)
      : int8(options.dtype(torch::kInt8)),
        plain(options.dtype(torch::kFloat)) {}

  void append(
      const torch::Tensor& keys,
      const torch::Tensor& values,
      const torch::Tensor& lengths) {
    int8.append(keys, values, lengths);
    plain.append(
        rounded(keys), values.defined() ? rounded(values) : values, lengths);
  }

  void check() const {
    check_unchanged(int8, contents(plain));
  }
};

/// Does a random operation to both.
void step(Twins& twins, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const auto has = twins.int8.options();
  const auto B = has.batch_size();
  const auto draw = [&](int64_t n) {
    std::vector<int64_t> numbers;
    for (int64_t b = 0; b < B; ++b) {
      numbers.push_back(below(n));
    }
    return counts(numbers);
  };
  const auto both = [&](const auto& change) {
    change(twins.int8);
    change(twins.plain);
  };
  switch (below(7)) {
    case 0: {
      const auto sources = draw(B);
      both([&](KVCache& cache) { cache.reorder(sources); });
      break;
    }
    case 1: {
      const auto lengths = (twins.int8.lengths() - draw(4)).clamp_min(0);
      both([&](KVCache& cache) {
        try {
          cache.truncate(lengths);
        } catch (const c10::Error&) {
          REQUIRE((has.window() || has.chunk()));
        }
      });
      break;
    }
    case 2:
      both([&](KVCache& cache) { cache = cache.clone(); });
      break;
    case 3: {
      const auto length = below(100);
      both([&](KVCache& cache) { cache.reserve(length); });
      break;
    }
    default: {
      const auto T = 1 + below(9);
      const auto x = [&](int64_t size) {
        return torch::randn({B, has.num_kv_heads(), T, size});
      };
      twins.append(
          x(has.head_dim()),
          has.values_in_keys() ? torch::Tensor() : x(*has.value_dim()),
          below(2) == 0 ? draw(T + 1) : torch::Tensor());
    }
  }
}

/// A query, and caches of blocks and in one piece with the same rows of int8.
struct Attended {
  torch::Tensor query;
  KVCache slab;
  BlockCache blocks;
  std::vector<int64_t> sequences;
  torch::Tensor lengths;

  /// (B, G, S, D)
  explicit Attended(
      torch::IntArrayRef keys,
      int64_t H,
      int64_t T,
      const torch::Tensor& new_lengths = {})
      : query(torch::randn({keys[0], H, T, keys[3]})),
        slab(KVCacheOptions(keys[0], keys[1], keys[3]).dtype(torch::kInt8)),
        blocks(BlockCacheOptions(keys[1], keys[3])
                   .block_size(64)
                   .dtype(torch::kInt8)) {
    const auto key = torch::randn(keys);
    const auto value = torch::randn(keys);
    slab.append(key, value, new_lengths);
    for (int64_t b = 0; b < keys[0]; ++b) {
      sequences.push_back(blocks.admit());
    }
    blocks.batch(sequences).append(key, value, new_lengths);
    lengths = slab.lengths();
  }

  /// Attends by functional attention to the numbers of the rows.
  torch::Tensor expected(FuncOptions options) const {
    options.query_offsets(lengths - query.size(2)).key_lengths(lengths);
    return functional::scaled_dot_product_attention(
        query.to(torch::kDouble),
        slab.keys().to(torch::kDouble),
        slab.values().to(torch::kDouble),
        options);
  }

  torch::Tensor by_blocks(const FuncOptions& options) const {
    return functional::paged_attention(query, blocks.batch(sequences), options);
  }
};

MultiHeadAttention attention_of(int64_t G) {
  torch::manual_seed(11);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(64, 64, 600, 4).num_kv_heads(G));
  attention->eval();
  return attention;
}

template <typename Module>
KVCache int8_cache(const Module& attention, int64_t B) {
  auto cache = attention->make_cache(B);
  cache.to(torch::kInt8);
  return cache;
}

} // namespace

TEST_CASE("A cache of int8 holds what one of rounded numbers holds") {
  torch::manual_seed(1);
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    KVCacheOptions options(1 + i % 3, 2, 1 + 7 * (i % 5));
    options.value_dim(1 + i % 4).block(1 + i % 6);
    if (i % 4 == 1) {
      options.window(5);
    } else if (i % 4 == 2) {
      options.chunk(6);
    } else if (i % 4 == 3) {
      options.value_dim(options.head_dim()).values_in_keys(true);
    }
    if (i % 8 == 4) {
      options.num_parts(2).part(i % 16 / 8);
    }
    Twins twins(options);
    INFO("options " << i);
    for (int j = 0; j < 25; ++j) {
      INFO("step " << j);
      step(twins, random);
      twins.check();
    }
  }
}

TEST_CASE("A cache of int8 takes a byte for each number, and four for scales") {
  KVCache cache(
      KVCacheOptions(2, 3, 64).value_dim(32).block(16).dtype(torch::kInt8));
  cache.append(torch::randn({2, 3, 10, 64}), torch::randn({2, 3, 10, 32}));
  CHECK(cache.nbytes() == 2 * 3 * 16 * (64 + 4 + 32 + 4));
  CHECK(cache.keys().scalar_type() == torch::kFloat);
  CHECK(cache.keys().sizes() == torch::IntArrayRef({2, 3, 10, 64}));
  CHECK(cache.values().sizes() == torch::IntArrayRef({2, 3, 10, 32}));
}

TEST_CASE("A cache becomes int8 and something else") {
  torch::manual_seed(2);
  const auto key = torch::randn({1, 2, 5, 12}, torch::kDouble);
  for (const bool in_keys : {false, true}) {
    KVCache cache(KVCacheOptions(1, 2, 12)
                      .value_dim(in_keys ? 7 : 12)
                      .values_in_keys(in_keys)
                      .dtype(torch::kDouble));
    cache.append(key, in_keys ? torch::Tensor() : key);
    cache.to(torch::kInt8);
    CHECK(cache.options().dtype() == torch::kInt8);
    CHECK_THAT(cache.keys(), IsEqualTo(rounded(key)));
    const auto values = rounded(key).narrow(3, 0, in_keys ? 7 : 12);
    CHECK_THAT(cache.values(), IsEqualTo(values));
    cache.append(key, in_keys ? torch::Tensor() : key);
    cache.to(torch::kBFloat16);
    const auto twice = torch::cat({rounded(key), rounded(key)}, 2);
    CHECK_THAT(cache.keys(), IsEqualTo(twice.to(torch::kBFloat16)));
    CHECK(cache.values().size(3) == (in_keys ? 7 : 12));
  }
}

TEST_CASE("Rows that are not finite become NaN in a cache of int8") {
  KVCache cache(KVCacheOptions(1, 1, 3).dtype(torch::kInt8));
  auto key = torch::randn({1, 1, 4, 3});
  key[0][0][1][2] = std::numeric_limits<float>::infinity();
  key[0][0][2][0] = std::numeric_limits<float>::quiet_NaN();
  key[0][0][3].zero_();
  cache.append(key, key);
  CHECK(cache.keys()[0][0][1].isnan().all().item<bool>());
  CHECK(cache.keys()[0][0][2].isnan().all().item<bool>());
  CHECK(cache.keys()[0][0][3].eq(0).all().item<bool>());
  CHECK_THAT(cache.keys()[0][0][0], IsEqualTo(rounded(key)[0][0][0]));
}

TEST_CASE("Rows that stand for others become int8 by operators") {
  torch::manual_seed(9);
  auto key = torch::randn({1, 2, 5, 6});
  key[0][1][2].zero_();
  key[0][0][3][1] = std::numeric_limits<float>::infinity();
  KVCache plain(KVCacheOptions(1, 2, 6).dtype(torch::kInt8));
  plain.append(-key, -key);
  KVCache cache(KVCacheOptions(1, 2, 6).dtype(torch::kInt8));
  const auto negative = at::_neg_view(key);
  cache.append(negative, negative);
  CHECK(cache.keys().nan_to_num(7).equal(plain.keys().nan_to_num(7)));
  CHECK(cache.values().isnan().equal(plain.values().isnan()));
  CHECK(cache.keys()[0][0][3].isnan().all().item<bool>());
}

TEST_CASE("Sequences in blocks of int8 hold what those of rounded numbers do") {
  torch::manual_seed(3);
  std::mt19937 random(3);
  BlockCacheOptions options(2, 5);
  options.value_dim(3).block_size(64);
  BlockCache int8(options.dtype(torch::kInt8));
  BlockCache plain(options.dtype(torch::kFloat));
  std::vector<int64_t> sequences{int8.admit()};
  REQUIRE(plain.admit() == sequences[0]);
  for (int i = 0; i < 120; ++i) {
    const auto at = random() % sequences.size();
    const auto sequence = sequences[at];
    switch (random() % 5) {
      case 0:
        sequences.push_back(int8.fork(sequence));
        REQUIRE(plain.fork(sequence) == sequences.back());
        break;
      case 1: {
        const auto length = static_cast<int64_t>(
            random() % static_cast<uint64_t>(int8.length(sequence) + 1));
        int8.truncate(sequence, length);
        plain.truncate(sequence, length);
        break;
      }
      case 2:
        if (sequences.size() > 3) {
          int8.drop(sequence);
          plain.drop(sequence);
          sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(at));
          int8.shrink();
          plain.shrink();
        }
        break;
      default: {
        const auto B = static_cast<int64_t>(sequences.size());
        const auto T = static_cast<int64_t>(1 + random() % 50);
        const auto key = torch::randn({B, 2, T, 5}, torch::kDouble);
        const auto value = torch::randn({B, 2, T, 3});
        int8.batch(sequences).append(key, value);
        plain.batch(sequences).append(rounded(key), rounded(value));
      }
    }
    for (const auto each : sequences) {
      REQUIRE(int8.length(each) == plain.length(each));
      const auto found = int8.batch({each});
      const auto expected = plain.batch({each});
      REQUIRE(found.keys().equal(expected.keys()));
      REQUIRE(found.values().equal(expected.values()));
    }
  }
}

TEST_CASE("Attention to blocks of int8 is that to their numbers") {
  torch::manual_seed(4);
  for (const auto kernel :
       {Kernel::kAuto, Kernel::kFused, Kernel::kReference}) {
    for (const int64_t T : {1, 3, 90}) {
      for (const int64_t H : {2, 8}) {
        INFO(
            "kernel " << static_cast<int>(kernel) << ", T " << T << ", H "
                      << H);
        const Attended x({2, 2, 130, 48}, H, T, counts({130, 95}));
        const auto options =
            FuncOptions().enable_gqa(H != 2).causal(true).softcap(20).kernel(
                kernel);
        const auto output = x.by_blocks(options);
        CHECK(relative_error(output, x.expected(options)) < 2e-4);
        const auto half = functional::paged_attention(
            x.query.to(torch::kBFloat16), x.blocks.batch(x.sequences), options);
        CHECK(half.scalar_type() == torch::kBFloat16);
        CHECK(relative_error(half, x.expected(options)) < 2e-2);
      }
    }
  }
}

TEST_CASE("A bias hides rows of int8 by low numbers") {
  torch::manual_seed(5);
  const double low = GENERATE(-1e9, -1e30);
  const Attended x({2, 2, 130, 48}, 8, 1);
  auto bias = torch::zeros({130});
  bias.slice(0, 20, 100).fill_(low);
  const auto options = FuncOptions().enable_gqa(true).bias(bias);
  CHECK(
      relative_error(
          x.by_blocks(options),
          x.expected(FuncOptions(options).bias(bias.to(torch::kDouble)))) <
      2e-4);
}

TEST_CASE("Attention to blocks of int8 has the query's gradients") {
  torch::manual_seed(5);
  Attended x({1, 2, 20, 8}, 2, 2);
  x.query.requires_grad_(true);
  x.by_blocks(FuncOptions()).sum().backward();
  const auto gradient = x.query.grad().clone();
  x.query.mutable_grad().zero_();
  x.expected(FuncOptions()).sum().backward();
  CHECK_THAT(gradient, IsCloseTo(x.query.grad(), {1e-4, 1e-5}));
}

TEST_CASE("Modules decode with a cache of int8") {
  for (const int64_t G : {1, 4}) {
    auto attention = attention_of(G);
    const torch::NoGradGuard no_grad;
    const auto x = torch::randn({2, 300, 64});
    auto plain = attention->make_cache(2);
    auto slab = int8_cache(attention, 2);
    BlockCache blocks(attention->block_cache_options().dtype(torch::kInt8));
    const auto batch = blocks.batch({blocks.admit(), blocks.admit()});
    for (const int64_t end : {200, 290, 291, 292, 300}) {
      const auto begin = plain.lengths()[0].item<int64_t>();
      const auto tokens = x.slice(1, begin, end);
      const auto expected = attention->decode(tokens, plain);
      const auto found = attention->decode(tokens, slab);
      CHECK(found.scalar_type() == torch::kFloat);
      CHECK(relative_error(found, expected) < 1e-2);
      CHECK_THAT(attention->decode(tokens, batch), IsEqualTo(found));
    }
    CHECK_THAT(batch.keys(), IsEqualTo(slab.keys()));
  }
}

TEST_CASE("Modules of other dtypes decode with a cache of int8") {
  const torch::NoGradGuard no_grad;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    auto attention = attention_of(2);
    const auto x = torch::randn({1, 40, 64});
    const auto expected = attention->forward(x);
    attention->to(dtype);
    auto cache = int8_cache(attention, 1);
    attention->decode(x.slice(1, 0, 39).to(dtype), cache);
    const auto found = attention->decode(x.slice(1, 39, 40).to(dtype), cache);
    CHECK(found.scalar_type() == dtype);
    CHECK(
        relative_error(found[0][0].to(torch::kFloat), expected[0][39]) < 2e-2);
  }
}

TEST_CASE("Latent attention decodes with a cache of int8") {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  LatentAttention attention(LatentAttentionOptions(32, 32, 300, 4)
                                .kv_rank(24)
                                .nope_dim(8)
                                .rope_dim(4)
                                .value_dim(8));
  attention->eval();
  const auto x = torch::randn({1, 130, 32});
  auto plain = attention->make_cache(1);
  auto slab = int8_cache(attention, 1);
  BlockCache blocks(attention->block_cache_options().dtype(torch::kInt8));
  const auto batch = blocks.batch({blocks.admit()});
  for (const int64_t end : {120, 121, 130}) {
    const auto begin = plain.lengths()[0].item<int64_t>();
    const auto tokens = x.slice(1, begin, end);
    const auto expected = attention->decode(tokens, plain);
    const auto found = attention->decode(tokens, slab);
    CHECK(relative_error(found, expected) < 2e-2);
    CHECK_THAT(attention->decode(tokens, batch), IsEqualTo(found));
  }
}

TEST_CASE("Cross-attention decodes with a cache of int8") {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  CrossAttention attention(CrossAttentionOptions(16, 12, 16, 4));
  attention->eval();
  auto cache = attention->make_cache(torch::randn({2, 50, 12}));
  const auto x = torch::randn({2, 3, 16});
  const auto expected = attention->decode(x, cache);
  cache.to(torch::kInt8);
  CHECK(relative_error(attention->decode(x, cache), expected) < 2e-2);
}

TEST_CASE("A window hides rows of int8 that are not finite") {
  torch::manual_seed(8);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t hidden : {3, 60}) {
    KVCache cache(KVCacheOptions(1, 2, 64).dtype(torch::kInt8));
    auto key = torch::randn({1, 2, 64, 64});
    key[0][0][hidden].fill_(nan);
    cache.append(key, key);
    BlockCache blocks(BlockCacheOptions(2, 64).dtype(torch::kInt8));
    const auto batch = blocks.batch({blocks.admit()});
    batch.append(key, key);
    const auto output = functional::paged_attention(
        torch::randn({1, 2, 1, 64}),
        batch,
        FuncOptions().causal(true).window(20));
    CHECK(output[0][0].isnan().any().item<bool>() == (hidden == 60));
    CHECK(output[0][1].isfinite().all().item<bool>());
  }
}

TEST_CASE("Integers other than int8 make no cache") {
  const std::string expected =
      "expected a floating-point dtype or torch::kInt8, but got Int";
  CHECK_THROWS_WITH(
      KVCache(KVCacheOptions(1, 1, 2).dtype(torch::kInt)),
      ContainsText(expected));
  CHECK_THROWS_WITH(
      BlockCache(BlockCacheOptions(1, 2).dtype(torch::kInt)),
      ContainsText(expected));
}

} // namespace int8_cache_test
