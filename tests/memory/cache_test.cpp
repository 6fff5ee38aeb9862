// A cache whose memory runs out is what it was before.

#include <memory/computation.h>
#include <support/test.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Everything that a user sees of a cache. Rows are those of its sequences,
/// not what lies behind.
struct Contents {
  std::vector<torch::Tensor> tensors;
  int64_t capacity = 0;

  explicit Contents(const KVCache& cache) : capacity(cache.capacity()) {
    tensors = {cache.lengths().clone(), cache.starts().clone()};
    const auto rows = tensors[0] - tensors[1];
    for (int64_t b = 0; b < rows.size(0); ++b) {
      const auto n = rows[b].item<int64_t>();
      tensors.push_back(cache.keys()[b].slice(1, 0, n).clone());
      tensors.push_back(cache.values()[b].slice(1, 0, n).clone());
    }
  }

  std::string difference(const Contents& now) const {
    constexpr const char* kNames[] = {"lengths", "starts", "keys", "values"};
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& x = tensors[i];
      const auto& y = now.tensors[i];
      if (x.scalar_type() != y.scalar_type() || !x.equal(y)) {
        return c10::str("other ", kNames[i < 2 ? i : 2 + i % 2]);
      }
    }
    return capacity == now.capacity
        ? ""
        : c10::str("capacity ", now.capacity, " instead of ", capacity);
  }
};

/// An attempt at `change` of a cache that `make` fills.
std::function<Attempt()> change_of(
    const std::function<KVCache()>& make,
    const std::function<void(KVCache&)>& change) {
  const auto expected = std::make_shared<KVCache>(make());
  change(*expected);
  return [make, change, expected] {
    const auto cache = std::make_shared<KVCache>(make());
    const auto before = std::make_shared<Contents>(*cache);
    Attempt attempt;
    attempt.run = [cache, change] { change(*cache); };
    attempt.changed = [cache, before] {
      return before->difference(Contents(*cache));
    };
    attempt.wrong = [cache, expected] {
      return Contents(*expected).difference(Contents(*cache));
    };
    return attempt;
  };
}

torch::Tensor rows(int64_t T, int64_t first) {
  return (torch::arange(3 * 2 * T * 4) + first)
      .to(torch::kFloat)
      .view({3, 2, T, 4});
}

/// Three sequences of 9, 5 and 7 tokens.
KVCache filled(const std::optional<int64_t>& window) {
  KVCache cache(KVCacheOptions(3, 2, 4).block(4).window(window));
  cache.append(rows(5, 0), rows(5, 1000));
  cache.append(
      rows(4, 2000), rows(4, 3000), torch::tensor({4, 0, 2}, torch::kLong));
  return cache;
}

MultiHeadAttention decoder(const std::optional<int64_t>& window) {
  torch::manual_seed(1);
  auto options = MultiHeadAttentionOptions(8, 8, 64, 4)
                     .num_kv_heads(2)
                     .window(window)
                     .rotary(RotaryOptions());
  MultiHeadAttention attention(options);
  attention->eval();
  return attention;
}

} // namespace

TEST_CASE("A cache that cannot be made is none") {
  check_no_faults(fail_each_allocation([] {
    Attempt attempt;
    attempt.run = [] { KVCache(KVCacheOptions(3, 2, 4)); };
    attempt.changed = [] { return std::string(); };
    return attempt;
  }));
}

TEST_CASE("A change of a cache that fails leaves it as it was") {
  using Optional = std::optional<int64_t>;
  const auto window = GENERATE(Optional(), Optional(3));
  CAPTURE(window.value_or(0));
  std::function<void(KVCache&)> change;
  SECTION("append of a few") {
    change = [](KVCache& cache) { cache.append(rows(1, 4000), rows(1, 5000)); };
  }
  SECTION("append of more than there is room for") {
    change = [](KVCache& cache) { cache.append(rows(6, 4000), rows(6, 5000)); };
  }
  SECTION("append of some of each") {
    change = [](KVCache& cache) {
      cache.append(
          rows(6, 4000).to(torch::kDouble),
          rows(6, 5000).transpose(0, 1).contiguous().transpose(0, 1),
          torch::tensor({6, 0, 1}, torch::kInt));
    };
  }
  SECTION("reorder") {
    change = [](KVCache& cache) {
      cache.reorder(torch::tensor({1, 1, 0}, torch::kLong));
    };
  }
  SECTION("truncate") {
    change = [](KVCache& cache) { cache.truncate(8); };
  }
  SECTION("truncate of some") {
    change = [](KVCache& cache) {
      cache.truncate(torch::tensor({8, 0, 7}, torch::kLong));
    };
  }
  SECTION("reset") {
    change = [](KVCache& cache) { cache.reset(); };
  }
  SECTION("reserve") {
    if (window) {
      return; // There is no need for more memory.
    }
    change = [](KVCache& cache) { cache.reserve(64); };
  }
  SECTION("another dtype") {
    change = [](KVCache& cache) { cache.to(torch::kBFloat16); };
  }
  SECTION("a copy") {
    change = [](KVCache& cache) { cache.clone(); };
  }
  check_no_faults(
      fail_each_allocation(change_of([&] { return filled(window); }, change)));
}

TEST_CASE("A decode that fails leaves its cache as it was") {
  using Optional = std::optional<int64_t>;
  const auto window = GENERATE(Optional(), Optional(3));
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto new_lengths =
      GENERATE(torch::Tensor(), torch::tensor({2, 0, 1}, torch::kLong));
  const auto T = GENERATE(2, 7);
  CAPTURE(window.value_or(0), kernel, new_lengths.defined(), T);
  auto attention = decoder(window);
  attention->options.kernel(kernel);
  const auto text = torch::randn({3, 5, 8});
  const auto more = torch::randn({3, T, 8});
  const auto fill = [&] {
    auto options = attention->make_cache(3).options();
    KVCache cache(options.block(4));
    attention->decode(text, cache);
    return cache;
  };
  check_no_faults(fail_each_allocation(change_of(fill, [&](KVCache& cache) {
    attention->decode(more, cache, new_lengths);
  })));
}

TEST_CASE("Sizes that fit into no memory are refused with a message") {
  constexpr auto kLargest = std::numeric_limits<int64_t>::max();
  const char* message = "KVCache: expected sizes that fit into memory";
  for (const auto size : {int64_t{1} << 40, int64_t{1} << 46, kLargest}) {
    THROWS_WITH(KVCache(KVCacheOptions(size, 2, 4)), message);
    THROWS_WITH(KVCache(KVCacheOptions(3, size, 4)), message);
    THROWS_WITH(KVCache(KVCacheOptions(3, 2, size)), message);
    KVCache cache(KVCacheOptions(3, 2, 4));
    THROWS_WITH(cache.reserve(size), message);
    CHECK(cache.capacity() == 0);
    MultiHeadAttention attention(MultiHeadAttentionOptions(8, 8, 16, 2));
    THROWS_WITH(attention->make_cache(size), message);
  }
  KVCache block(KVCacheOptions(3, 2, 4).block(kLargest).window(kLargest));
  THROWS_WITH(block.append(rows(1, 0), rows(1, 0)), message);
  CHECK(block.capacity() == 0);
}

} // namespace cache_test
