#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <nn/small_blocks.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace block_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::testing::small_blocks;

namespace {

/// Everything that a user sees of a cache.
struct Contents {
  std::vector<torch::Tensor> rows;
  std::vector<int64_t> numbers;

  Contents(const BlockCache& cache, const std::vector<int64_t>& sequences)
      : numbers{cache.num_sequences(), cache.num_blocks()} {
    for (const auto sequence : sequences) {
      const auto batch = cache.batch({sequence});
      rows.push_back(batch.keys());
      rows.push_back(batch.values());
    }
  }

  bool operator==(const Contents& other) const {
    return numbers == other.numbers && rows.size() == other.rows.size() &&
        std::equal(
               rows.begin(),
               rows.end(),
               other.rows.begin(),
               [](const torch::Tensor& x, const torch::Tensor& y) {
                 return x.equal(y);
               });
  }
};

} // namespace

TEST_CASE("Queries that read freed blocks are refused") {
  BlockCache cache(small().window(10));
  const auto id = cache.admit();
  const auto batch = cache.batch({id});
  const auto append = [&](int64_t T) {
    batch.append(draw(1, T, kHeadDim), draw(1, T, kValueDim));
  };
  append(300);
  append(1);
  // Five blocks without those before token 300 - 64 - 9.
  CHECK(cache.num_blocks() == 2);
  const auto query = torch::randn({1, kHeads, 1, kHeadDim}, torch::kDouble);
  functional::ScaledDotProductAttentionFuncOptions options;
  options.causal(true);
  THROWS_WITH(
      functional::paged_attention(query, batch, options),
      "read no token before 192, since those of sequence 0 are freed (window), "
      "but got one at 300 that reads from 0 on;");
  options.window(109);
  functional::paged_attention(query, batch, options);
  options.window(110);
  THROWS_WITH(
      functional::paged_attention(query, batch, options), "reads from 191 on");
  options.window(10).query_offsets(torch::tensor({200}));
  THROWS_WITH(
      functional::paged_attention(query, batch, options), "reads from 191 on");
  options.query_offsets(torch::tensor({201}));
  functional::paged_attention(query, batch, options);
  THROWS_WITH(
      BlockCache(small().window(10).chunk(5)), "a window or a chunk, but got");
  THROWS_WITH(BlockCache(small().chunk(0)), "chunk");
}

TEST_CASE("A fork stores nothing until one of both grows") {
  BlockCache cache(small());
  const auto a = cache.admit();
  cache.batch({a}).append(draw(1, 100, kHeadDim), draw(1, 100, kValueDim));
  CHECK(cache.num_blocks() == 2);
  const auto b = cache.fork(a);
  const auto c = cache.fork(a);
  CHECK(cache.num_blocks() == 2);
  CHECK(cache.length(b) == 100);
  const auto keys = cache.batch({a}).keys();
  cache.batch({b}).append(draw(1, 1, kHeadDim), draw(1, 1, kValueDim));
  // The full block is still shared by all.
  CHECK(cache.num_blocks() == 3);
  CHECK_THAT(cache.batch({a}).keys(), IsEqualTo(keys));
  CHECK_THAT(cache.batch({c}).keys(), IsEqualTo(keys));
  CHECK_THAT(
      cache.batch({b}).keys().narrow(2, 0, 100).contiguous(), IsEqualTo(keys));
  cache.drop(a);
  CHECK(cache.num_blocks() == 3);
  cache.drop(c);
  CHECK(cache.num_blocks() == 2);
  cache.drop(b);
  CHECK(cache.num_blocks() == 0);
}

TEST_CASE("A cache of blocks that grows moves nothing") {
  BlockCache cache(BlockCacheOptions(kHeads, 64).dtype(torch::kDouble));
  const auto a = cache.admit();
  const auto append = [&] {
    cache.batch({a}).append(draw(1, 500, 64), draw(1, 500, 64));
    return cache.nbytes();
  };
  const auto first = append();
  CHECK(first > 0);
  auto bytes = first;
  for (int i = 0; i < 40; ++i) {
    const auto now = append();
    CHECK(now >= bytes);
    bytes = now;
  }
  CHECK(bytes > first);
  // Memory of sequences that are gone serves the next ones.
  cache.truncate(a, 0);
  CHECK(cache.num_blocks() == 0);
  CHECK(cache.nbytes() == bytes);
  append();
  CHECK(cache.nbytes() == bytes);
  cache.shrink();
  CHECK(cache.nbytes() < bytes);
  CHECK(cache.length(a) == 500);
}

TEST_CASE("Wrong arguments leave a cache of blocks as it was") {
  BlockCache cache(small().max_blocks(3));
  const auto a = cache.admit();
  const auto b = cache.fork(a);
  const auto gone = cache.admit();
  cache.batch({a, b}).append(draw(2, 10, kHeadDim), draw(2, 10, kValueDim));
  const auto with_gone = cache.batch({a, gone});
  cache.drop(gone);
  const Contents before(cache, {a, b});
  const auto batch = cache.batch({a, b});
  const auto keys = draw(2, 5, kHeadDim);
  const auto values = draw(2, 5, kValueDim);
  THROWS_WITH(cache.drop(gone), "was dropped");
  THROWS_WITH(cache.fork(77), "was never admitted");
  THROWS_WITH(cache.length(-1), "was never admitted");
  THROWS_WITH(cache.truncate(a, -1), "0 tokens or more");
  THROWS_WITH(cache.truncate(gone, 1), "was dropped");
  THROWS_WITH(cache.batch({}), "at least one");
  THROWS_WITH(cache.batch({a, b, a}), "twice");
  THROWS_WITH(cache.batch({gone}), "was dropped");
  THROWS_WITH(with_gone.append(keys, values), "was dropped");
  THROWS_WITH(with_gone.keys(), "was dropped");
  THROWS_WITH(batch.append({}, values), "keys are undefined");
  THROWS_WITH(batch.append(keys, {}), "values are undefined");
  THROWS_WITH(batch.append(values, values), "head_dim");
  THROWS_WITH(batch.append(keys, keys), "value_dim");
  THROWS_WITH(batch.append(keys, draw(2, 4, kValueDim)), "as many keys");
  THROWS_WITH(
      batch.append(draw(1, 5, kHeadDim), draw(1, 5, kValueDim)),
      "(2, 2, T, 3)");
  THROWS_WITH(batch.append(keys, values, torch::tensor({1, 6})), "new_lengths");
  THROWS_WITH(batch.append(keys.to(torch::kLong), values), "floating-point");
  THROWS_WITH(batch.append(keys.to(torch::kMeta), values), "meta");
  // One sequence has room, and both have not.
  THROWS_WITH(
      batch.append(draw(2, 60, kHeadDim), draw(2, 60, kValueDim)),
      "1 free blocks of max_blocks = 3, but got tokens that need 2");
  CHECK(Contents(cache, {a, b}) == before);
  THROWS_WITH(BlockCache(small().block_size(96)), "multiple of 64");
  THROWS_WITH(BlockCache(small().max_blocks(0)), "max_blocks");
  THROWS_WITH(BlockCache(small().dtype(torch::kInt)), "floating-point");
  THROWS_WITH(
      BlockCache(small().values_in_keys(true).value_dim(4)),
      "value_dim <= head_dim");
  THROWS_WITH(
      BlockCache(BlockCacheOptions(int64_t{1} << 40, int64_t{1} << 40)),
      "fits into memory");
}

TEST_CASE("A cache of blocks without memory is what it was") {
  BlockCache cache(small());
  const auto a = cache.admit();
  cache.batch({a}).append(draw(1, 10, kHeadDim), draw(1, 10, kValueDim));
  const auto b = cache.fork(a);
  const Contents before(cache, {a, b});
  const auto bytes = cache.nbytes();
  const int64_t many = 200000;
  const auto keys = draw(2, many, kHeadDim).to(torch::kFloat);
  const auto values = draw(2, many, kValueDim).to(torch::kFloat);
  for (int64_t at = 0; at < 4; ++at) {
    INFO("allocation " << at);
    const FailingAllocator failing(at);
    CHECK_THROWS(cache.batch({a, b}).append(keys, values));
  }
  CHECK(Contents(cache, {a, b}) == before);
  CHECK(cache.nbytes() == bytes);
  cache.batch({a, b}).append(keys, values);
  CHECK(cache.length(b) == 10 + many);
}

TEST_CASE("A batch of blocks outlives a cache that moves") {
  auto cache = std::make_optional<BlockCache>(small());
  const auto a = cache->admit();
  const auto batch = cache->batch({a});
  BlockCache moved(std::move(*cache));
  cache.reset();
  batch.append(draw(1, 10, kHeadDim), draw(1, 10, kValueDim));
  CHECK(moved.length(a) == 10);
}

TEST_CASE("Values in keys are stored once") {
  BlockCache cache(small().values_in_keys(true));
  const auto a = cache.admit();
  const auto batch = cache.batch({a});
  const auto keys = draw(1, 100, kHeadDim);
  THROWS_WITH(batch.append(keys, draw(1, 100, kValueDim)), "keys alone");
  batch.append(keys, {});
  CHECK_THAT(batch.keys(), IsEqualTo(keys));
  CHECK_THAT(
      batch.values().contiguous(),
      IsEqualTo(keys.narrow(3, 0, kValueDim).contiguous()));
  const auto query = torch::randn({1, kHeads, 1, kHeadDim}, torch::kDouble);
  CHECK_THAT(
      functional::paged_attention(query, batch),
      IsEqualTo(functional::scaled_dot_product_attention(
          query, keys, keys.narrow(3, 0, kValueDim))));
}

TEST_CASE("Rows that a sequence does not have are 0") {
  BlockCache cache(BlockCacheOptions(1, 4).block_size(64));
  const auto nan =
      torch::full({1, 1, 70, 4}, std::numeric_limits<float>::quiet_NaN());
  const auto dropped = cache.admit();
  cache.batch({dropped}).append(nan, nan);
  cache.drop(dropped);
  const auto sequences = std::vector<int64_t>{cache.admit(), cache.admit()};
  const auto some = torch::ones({2, 1, 70, 4});
  cache.batch(sequences).append(some, some, torch::tensor({70, 3}));
  const auto expected = some.clone();
  expected[1].slice(1, 3).zero_();
  CHECK(cache.batch(sequences).keys().equal(expected));
  CHECK(cache.batch(sequences).values().equal(expected));
}

TEST_CASE("Attention to blocks reads no keys beyond a sequence") {
  BlockCache cache(small());
  const auto batch = cache.batch({cache.admit(), cache.admit()});
  const auto keys = draw(2, 200, kHeadDim);
  const auto values = draw(2, 200, kValueDim);
  batch.append(keys, values, torch::tensor({200, 5}));
  const auto query = torch::randn({2, kHeads, 1, kHeadDim}, torch::kDouble);
  functional::ScaledDotProductAttentionFuncOptions options;
  const auto expected = functional::scaled_dot_product_attention(
      query, keys, values, options.key_lengths(torch::tensor({150, 5})));
  CHECK_THAT(
      functional::paged_attention(
          query, batch, options.key_lengths(torch::tensor({150, 150}))),
      IsEqualTo(expected));
  THROWS_WITH(
      functional::paged_attention(
          query, batch, options.key_lengths(torch::tensor({1, 201}))),
      "key_lengths");
  THROWS_WITH(
      functional::paged_attention(
          query, batch, options.key_lengths(torch::tensor({1}))),
      "key_lengths");
  THROWS_WITH(functional::paged_attention({}, batch), "query is undefined");
}

TEST_CASE("Attention to blocks has the query's gradients") {
  BlockCache cache(small());
  const auto a = cache.admit();
  const auto batch = cache.batch({a});
  const auto keys = draw(1, 70, kHeadDim);
  const auto values = draw(1, 70, kValueDim);
  batch.append(keys, values);
  const auto gradient_of = [&](auto attend) {
    torch::manual_seed(3);
    const auto query =
        torch::randn({1, kHeads, 2, kHeadDim}, torch::kDouble).requires_grad_();
    const auto output = attend(query);
    return torch::autograd::grad(
        {output}, {query}, {torch::ones_like(output)})[0];
  };
  functional::ScaledDotProductAttentionFuncOptions options;
  options.causal(true);
  CHECK_THAT(
      gradient_of([&](const auto& query) {
        return functional::paged_attention(query, batch, options);
      }),
      IsCloseTo(gradient_of([&](const auto& query) {
        return functional::scaled_dot_product_attention(
            query, keys, values, options);
      })));
}

TEST_CASE("Every kernel attends to blocks") {
  BlockCache cache(small());
  const auto a = cache.admit();
  const auto b = cache.admit();
  const auto batch = cache.batch({a, b});
  batch.append(
      draw(2, 70, kHeadDim), draw(2, 70, kValueDim), torch::tensor({70, 3}));
  const auto query = torch::randn({2, kHeads, 1, kHeadDim}, torch::kDouble);
  const auto attend = [&](Kernel kernel, const torch::Tensor& x) {
    functional::ScaledDotProductAttentionFuncOptions options;
    return functional::paged_attention(
        x, batch, options.causal(true).kernel(kernel));
  };
  const auto expected = attend(Kernel::kReference, query);
  CHECK_THAT(attend(Kernel::kAuto, query), IsCloseTo(expected));
  CHECK_THAT(attend(Kernel::kFused, query), IsCloseTo(expected));
  // LibTorch's kernels compute what ours do not read.
  CHECK_THAT(
      attend(Kernel::kFused, at::_neg_view(query.neg())), IsCloseTo(expected));
}

} // namespace block_cache_test
