#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace block_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kHeads = 2;
constexpr int64_t kHeadDim = 3;
constexpr int64_t kValueDim = 2;

BlockCacheOptions small() {
  return BlockCacheOptions(kHeads, kHeadDim)
      .value_dim(kValueDim)
      .block_size(kBlock)
      .dtype(torch::kDouble);
}

/// A sequence as tensors of its own: keys (G, n, D) and values (G, n, E). Its
/// blocks are counted by their users.
struct NaiveSequence {
  torch::Tensor keys = torch::zeros({kHeads, 0, kHeadDim}, torch::kDouble);
  torch::Tensor values = torch::zeros({kHeads, 0, kValueDim}, torch::kDouble);
  std::vector<std::shared_ptr<int>> blocks;

  int64_t length() const {
    return keys.size(1);
  }

  void truncate(int64_t n) {
    keys = keys.narrow(1, 0, std::min(n, length()));
    values = values.narrow(1, 0, keys.size(1));
    blocks.resize(blocks_for(length()));
  }

  static size_t blocks_for(int64_t n) {
    return static_cast<size_t>((n + kBlock - 1) / kBlock);
  }

  /// Returns whether the next token goes to a block that others read.
  bool copies() const {
    return length() % kBlock != 0 && blocks.back().use_count() > 1;
  }

  int64_t blocks_needed(int64_t count) const {
    const auto more = blocks_for(length() + count) - blocks.size();
    return static_cast<int64_t>(more) + (count > 0 && copies() ? 1 : 0);
  }
};

/// Rows (B, G, T, size) that differ from all others.
torch::Tensor draw(size_t B, int64_t T, int64_t size) {
  return torch::randn(
      {static_cast<int64_t>(B), kHeads, T, size}, torch::kDouble);
}

/// A cache, and what it should hold.
class Comparison {
 public:
  explicit Comparison(unsigned seed, int64_t max_blocks)
      : random_(seed), cache_(small().max_blocks(max_blocks)) {}

  void step() {
    const auto choice = random_() % 16;
    if (choice < 2 || naive_.empty()) {
      admit();
    } else if (choice < 4) {
      fork();
    } else if (choice < 6) {
      drop();
    } else if (choice < 8) {
      truncate();
    } else if (choice < 9) {
      attend();
    } else if (choice < 10) {
      cache_.shrink();
    } else {
      append();
    }
    check_counts();
  }

  /// All rows are those of the naive model.
  void check_rows() {
    for (const auto& [id, sequence] : naive_) {
      INFO("sequence " << id);
      const auto batch = cache_.batch({id});
      CHECK_THAT(batch.keys()[0].contiguous(), IsEqualTo(sequence.keys));
      CHECK_THAT(batch.values()[0].contiguous(), IsEqualTo(sequence.values));
    }
  }

  /// All memory is given back with the last sequence.
  void drop_all() {
    while (!naive_.empty()) {
      drop();
    }
    check_counts();
    CHECK(cache_.num_blocks() == 0);
    cache_.shrink();
    CHECK(cache_.nbytes() == 0);
  }

  int64_t num_refused() const {
    return num_refused_;
  }

 private:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  int64_t some() {
    const auto at = below(static_cast<int64_t>(naive_.size()));
    return std::next(naive_.begin(), at)->first;
  }

  std::vector<int64_t> some_batch() {
    std::vector<int64_t> ids;
    for (const auto& [id, sequence] : naive_) {
      if (below(3) == 0) {
        ids.push_back(id);
      }
    }
    std::shuffle(ids.begin(), ids.end(), random_);
    return ids.empty() ? std::vector<int64_t>{some()} : ids;
  }

  void admit() {
    const auto id = cache_.admit();
    CHECK(naive_.count(id) == 0);
    naive_[id];
  }

  void fork() {
    const auto from = some();
    const auto id = cache_.fork(from);
    CHECK(naive_.count(id) == 0);
    naive_[id] = naive_.at(from);
  }

  void drop() {
    const auto id = some();
    cache_.drop(id);
    naive_.erase(id);
    THROWS_WITH(cache_.drop(id), "was dropped");
  }

  void truncate() {
    const auto id = some();
    const auto n = below(naive_.at(id).length() + 2);
    cache_.truncate(id, n);
    naive_.at(id).truncate(n);
  }

  void append() {
    const auto ids = some_batch();
    const auto T = below(4) == 0 ? below(150) : below(4);
    const auto keys = draw(ids.size(), T, kHeadDim);
    const auto values = draw(ids.size(), T, kValueDim);
    std::vector<int64_t> counts(ids.size(), T);
    torch::Tensor new_lengths;
    if (below(3) == 0) {
      for (auto& count : counts) {
        count = below(T + 1);
      }
      new_lengths = torch::tensor(counts, torch::kLong);
    }
    int64_t needed = 0;
    for (size_t b = 0; b < ids.size(); ++b) {
      needed += naive_.at(ids[b]).blocks_needed(counts[b]);
    }
    const auto batch = cache_.batch(ids);
    if (needed > cache_.num_free_blocks()) {
      THROWS_WITH(
          batch.append(keys, values, new_lengths),
          c10::str(
              "the ",
              cache_.num_free_blocks(),
              " free blocks of max_blocks = ",
              *cache_.options().max_blocks(),
              ", but got tokens that need ",
              needed,
              ";"));
      ++num_refused_;
      return;
    }
    batch.append(keys, values, new_lengths);
    std::vector<bool> copies;
    for (const auto id : ids) {
      copies.push_back(naive_.at(id).copies());
    }
    for (size_t b = 0; b < ids.size(); ++b) {
      auto& to = naive_.at(ids[b]);
      if (counts[b] > 0 && copies[b]) {
        to.blocks.back() = std::make_shared<int>();
      }
      const auto row = static_cast<int64_t>(b);
      const auto add = [&](torch::Tensor& all, const torch::Tensor& rows) {
        all = torch::cat({all, rows[row].narrow(1, 0, counts[b])}, 1);
      };
      add(to.keys, keys);
      add(to.values, values);
      while (to.blocks.size() < NaiveSequence::blocks_for(to.length())) {
        to.blocks.push_back(std::make_shared<int>());
      }
    }
  }

  /// Attention to a batch has the bits of attention to its rows in tensors.
  void attend() {
    const auto ids = some_batch();
    std::vector<torch::Tensor> keys;
    std::vector<torch::Tensor> values;
    for (const auto id : ids) {
      // Sequences first, for padding.
      keys.push_back(naive_.at(id).keys.transpose(0, 1));
      values.push_back(naive_.at(id).values.transpose(0, 1));
    }
    const auto padded = [](const std::vector<torch::Tensor>& rows) {
      return torch::nn::utils::rnn::pad_sequence(rows, /*batch_first=*/true)
          .transpose(1, 2)
          .contiguous();
    };
    const auto batch = cache_.batch(ids);
    const auto T = 1 + below(3);
    const auto query =
        torch::randn({batch.size(), 2 * kHeads, T, kHeadDim}, torch::kDouble);
    functional::ScaledDotProductAttentionFuncOptions options;
    options.causal(true).enable_gqa(true);
    const auto output = functional::paged_attention(query, batch, options);
    options.key_lengths(batch.lengths()).query_offsets(batch.lengths() - T);
    CHECK_THAT(
        output,
        IsEqualTo(functional::scaled_dot_product_attention(
            query, padded(keys), padded(values), options)));
  }

  void check_counts() {
    std::set<int*> blocks;
    for (const auto& [id, sequence] : naive_) {
      REQUIRE(cache_.length(id) == sequence.length());
      for (const auto& block : sequence.blocks) {
        blocks.insert(block.get());
      }
    }
    const auto used = static_cast<int64_t>(blocks.size());
    const auto most = *cache_.options().max_blocks();
    REQUIRE(cache_.num_sequences() == static_cast<int64_t>(naive_.size()));
    REQUIRE(cache_.num_blocks() == used);
    REQUIRE(cache_.num_free_blocks() == most - used);
    constexpr auto kBytes =
        kHeads * kBlock * (kHeadDim + kValueDim) * int64_t{sizeof(double)};
    const auto bytes = static_cast<int64_t>(cache_.nbytes());
    REQUIRE(bytes >= used * kBytes);
    REQUIRE(bytes <= most * kBytes);
  }

  std::mt19937 random_;
  BlockCache cache_;
  std::map<int64_t, NaiveSequence> naive_;
  int64_t num_refused_ = 0;
};

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

TEST_CASE(
    "Any order of 12000 operations on blocks holds what plain tensors do") {
  int64_t num_refused = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    INFO("seed " << seed);
    torch::manual_seed(seed);
    Comparison comparison(seed, /*max_blocks=*/20 + 10 * seed);
    for (int i = 0; i < 2000; ++i) {
      comparison.step();
      if (i % 20 == 0) {
        comparison.check_rows();
      }
    }
    comparison.check_rows();
    comparison.drop_all();
    num_refused += comparison.num_refused();
  }
  // Blocks ran out often enough to test it.
  CHECK(num_refused > 100);
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
