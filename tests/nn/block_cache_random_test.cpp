#include <support/close.h>
#include <support/sanitized.h>
#include <support/test.h>

#include <nn/small_blocks.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace block_cache_random_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::testing::small_blocks;

namespace {

/// A sequence as tensors of its own: keys (G, n, D) and values (G, n, E). Its
/// blocks are counted by their users.
struct NaiveSequence {
  torch::Tensor keys = torch::zeros({kHeads, 0, kHeadDim}, torch::kDouble);
  torch::Tensor values = torch::zeros({kHeads, 0, kValueDim}, torch::kDouble);
  /// Null once they are freed.
  std::vector<std::shared_ptr<int>> blocks;
  int64_t num_freed = 0;

  int64_t length() const {
    return keys.size(1);
  }

  int64_t freed_tokens() const {
    return num_freed * kBlock;
  }

  void truncate(int64_t n) {
    keys = keys.narrow(1, 0, std::min(n, length()));
    values = values.narrow(1, 0, keys.size(1));
    blocks.resize(blocks_for(length()));
    num_freed = std::min<int64_t>(num_freed, blocks.size());
  }

  /// Frees the blocks that no token of a window of `window` reads, even if a
  /// block of tokens is removed.
  void free(int64_t window) {
    while ((num_freed + 1) * kBlock <= length() - kBlock - (window - 1)) {
      blocks[static_cast<size_t>(num_freed)].reset();
      ++num_freed;
    }
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

/// A cache, and what it should hold.
class Comparison {
 public:
  Comparison(
      unsigned seed,
      int64_t max_blocks,
      std::optional<int64_t> window = std::nullopt)
      : random_(seed),
        window_(window),
        cache_(small().max_blocks(max_blocks).window(window)) {}

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
      const auto kept = [&](const torch::Tensor& rows) {
        return rows.slice(1, sequence.freed_tokens()).contiguous();
      };
      CHECK_THAT(kept(batch.keys()[0]), IsEqualTo(kept(sequence.keys)));
      CHECK_THAT(kept(batch.values()[0]), IsEqualTo(kept(sequence.values)));
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

  int64_t num_not_truncated() const {
    return num_not_truncated_;
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
    auto& naive = naive_.at(id);
    const auto n = below(naive.length() + 2);
    const auto freed = naive.freed_tokens();
    const auto least = freed > 0 ? freed + *window_ - 1 : 1;
    CHECK(cache_.least_length(id) == least);
    if (n > 0 && n < std::min(least, naive.length())) {
      THROWS_WITH(
          cache_.truncate(id, n),
          c10::str("to 0 or at least ", least, " tokens, since the first"));
      ++num_not_truncated_;
      return;
    }
    cache_.truncate(id, n);
    naive.truncate(n);
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
      if (window_) {
        naive_.at(ids[b]).free(*window_);
      }
      needed += naive_.at(ids[b]).blocks_needed(counts[b]);
    }
    const auto batch = cache_.batch(ids);
    const auto num_free = *cache_.options().max_blocks() - num_naive_blocks();
    if (needed > num_free) {
      THROWS_WITH(
          batch.append(keys, values, new_lengths),
          c10::str(
              "the ",
              num_free,
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
    if (window_) {
      // All T queries are within the cache's window after a truncation.
      options.window(*window_ - T);
    }
    const auto output = functional::paged_attention(query, batch, options);
    options.key_lengths(batch.lengths()).query_offsets(batch.lengths() - T);
    CHECK_THAT(
        output,
        IsEqualTo(functional::scaled_dot_product_attention(
            query, padded(keys), padded(values), options)));
  }

  int64_t num_naive_blocks() const {
    std::set<int*> blocks;
    for (const auto& [id, sequence] : naive_) {
      for (const auto& block : sequence.blocks) {
        blocks.insert(block.get());
      }
    }
    blocks.erase(nullptr);
    return static_cast<int64_t>(blocks.size());
  }

  void check_counts() {
    for (const auto& [id, sequence] : naive_) {
      REQUIRE(cache_.length(id) == sequence.length());
    }
    const auto used = num_naive_blocks();
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
  std::optional<int64_t> window_;
  BlockCache cache_;
  std::map<int64_t, NaiveSequence> naive_;
  int64_t num_refused_ = 0;
  int64_t num_not_truncated_ = 0;
};

} // namespace

TEST_CASE(
    "Any order of 12000 operations on blocks holds what plain tensors do") {
  int64_t num_refused = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    INFO("seed " << seed);
    torch::manual_seed(seed);
    Comparison comparison(seed, /*max_blocks=*/20 + 10 * seed);
    for (int i = 0; i < unless_sanitized(2000, 1000); ++i) {
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

TEST_CASE("A cache of blocks with a window frees those that no token reads") {
  int64_t num_not_truncated = 0;
  for (const int64_t window : {4, 40, 100}) {
    INFO("window " << window);
    torch::manual_seed(7);
    Comparison comparison(7, /*max_blocks=*/80, window);
    for (int i = 0; i < unless_sanitized(2400, 1200); ++i) {
      comparison.step();
      if (i % 20 == 0) {
        comparison.check_rows();
      }
    }
    comparison.drop_all();
    num_not_truncated += comparison.num_not_truncated();
  }
  CHECK(num_not_truncated > 10);
}

} // namespace block_cache_random_test
