#include <cpu/blocks.h>
#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace same_bits_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

/// A text: queries, keys and values of its tokens.
template <typename X>
struct Text {
  int64_t length;
  Buffer<X> query; // (1, H, length, D)
  Buffer<X> key; // (1, G, length, D)
  Buffer<X> value; // (1, G, length, E)

  Text(const Case& c, int64_t tokens, std::mt19937& random)
      : length(tokens),
        query(1, c.H, tokens, c.D, Layout::kTokensFirst, stored<X>(0)),
        key(1, c.G, tokens, c.D, Layout::kTokensFirst, stored<X>(0)),
        value(1, c.G, tokens, c.E, Layout::kTokensFirst, stored<X>(0)) {
    std::normal_distribution<double> normal;
    query.fill([&] { return 2 * normal(random); });
    key.fill([&] { return 2 * normal(random); });
    value.fill([&] { return normal(random); });
  }
};

/// A piece of a text whose tokens attend to those before them.
template <typename X>
struct Piece {
  Text<X>* text;
  int64_t begin;
  int64_t end;
};

/// The sizes and rules of all calls of a case.
template <typename X>
struct Rules {
  Case sizes;
  bool same_bits = true;
  std::vector<Compute<X>> slopes;
  std::vector<Compute<X>> sinks;

  Rules(const Case& c, std::mt19937& random) : sizes(c) {
    std::normal_distribution<double> normal;
    for (int64_t h = 0; h < c.H; ++h) {
      slopes.push_back(static_cast<Compute<X>>(std::abs(normal(random)) / 8));
      sinks.push_back(static_cast<Compute<X>>(2 * normal(random)));
    }
  }

  void apply_to(AttentionArguments<X>& a) const {
    const auto& c = sizes;
    a.num_heads = c.H;
    a.num_kv_heads = c.G;
    a.head_dim = c.D;
    a.value_dim = c.E;
    a.rule.causal = true;
    a.same_bits = same_bits;
    a.rule.scale = c.scale / std::sqrt(static_cast<double>(c.D));
    if (c.window > 0) {
      a.rule.window = c.window;
    }
    if (c.chunk > 0) {
      a.rule.chunk = c.chunk;
    }
    if (c.softcap > 0) {
      a.rule.softcap = c.softcap;
    }
    a.alibi_slopes = c.alibi ? slopes.data() : nullptr;
    a.sinks = c.sinks ? sinks.data() : nullptr;
  }
};

template <typename X>
void copy_tokens(
    Buffer<X>& from,
    int64_t begin,
    int64_t end,
    int64_t heads,
    int64_t features,
    int64_t b,
    int64_t at,
    Buffer<X>& to) {
  for (int64_t h = 0; h < heads; ++h) {
    for (auto t = begin; t < end; ++t) {
      for (int64_t i = 0; i < features; ++i) {
        to(b, h, at + t - begin, i) = from(0, h, t, i);
      }
    }
  }
}

/// Attends from pieces of the same number of tokens, one of each text, in a
/// cache with room for `room` tokens each, or in blocks of `block_size` tokens.
/// Returns their outputs (B, H, T, E).
template <typename X>
Buffer<X> attend_in_cache(
    const Rules<X>& rules,
    const std::vector<Piece<X>>& pieces,
    int64_t room,
    const Threads& threads,
    int64_t block_size = 0) {
  const auto& c = rules.sizes;
  const auto B = static_cast<int64_t>(pieces.size());
  const auto T = pieces[0].end - pieces[0].begin;
  const auto nan = stored<X>(kNaN);
  Buffer<X> query(B, c.H, T, c.D, c.layout, nan);
  Buffer<X> key(B, c.G, room, c.D, c.layout, nan);
  Buffer<X> value(B, c.G, room, c.E, c.layout, nan);
  Buffer<X> output(B, c.H, T, c.E, c.layout, nan);
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < B; ++b) {
    const auto& [text, begin, end] = pieces[static_cast<size_t>(b)];
    copy_tokens(text->query, begin, end, c.H, c.D, b, 0, query);
    copy_tokens(text->key, 0, end, c.G, c.D, b, 0, key);
    copy_tokens(text->value, 0, end, c.G, c.E, b, 0, value);
    offsets.push_back(begin);
    lengths.push_back(end);
  }
  AttentionArguments<X> a;
  rules.apply_to(a);
  a.batch_size = B;
  a.num_queries = T;
  a.num_keys = room;
  a.query = query.as_input();
  a.key = key.as_input();
  a.value = value.as_input();
  a.query_offsets = offsets.data();
  a.key_lengths = lengths.data();
  if (block_size == 0) {
    forward(a, output.as_output(), {}, threads);
    return output;
  }
  const Blocks<X> keys(key, c.G, c.D, lengths, block_size);
  const Blocks<X> values(value, c.G, c.E, lengths, block_size);
  a.blocks = {keys.table(), values.table(), keys.per_sequence(), block_size};
  a.key = {nullptr, {0, block_size * c.D, c.D}};
  a.value = {nullptr, {0, block_size * c.E, c.E}};
  forward(a, output.as_output(), {}, threads);
  return output;
}

/// Attends from packed pieces of any numbers of tokens. Returns their outputs,
/// one after the other (1, H, tokens, E).
template <typename X>
Buffer<X> attend_packed(
    const Rules<X>& rules,
    const std::vector<Piece<X>>& pieces,
    const Threads& threads) {
  const auto& c = rules.sizes;
  std::vector<int64_t> query_starts{0};
  std::vector<int64_t> key_starts{0};
  for (const auto& piece : pieces) {
    query_starts.push_back(query_starts.back() + piece.end - piece.begin);
    key_starts.push_back(key_starts.back() + piece.end);
  }
  const auto T = query_starts.back();
  const auto S = key_starts.back();
  const auto nan = stored<X>(kNaN);
  Buffer<X> query(1, c.H, T, c.D, c.layout, nan);
  Buffer<X> key(1, c.G, S, c.D, c.layout, nan);
  Buffer<X> value(1, c.G, S, c.E, c.layout, nan);
  Buffer<X> output(1, c.H, T, c.E, c.layout, nan);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [text, begin, end] = pieces[i];
    copy_tokens(text->query, begin, end, c.H, c.D, 0, query_starts[i], query);
    copy_tokens(text->key, 0, end, c.G, c.D, 0, key_starts[i], key);
    copy_tokens(text->value, 0, end, c.G, c.E, 0, key_starts[i], value);
  }
  AttentionArguments<X> a;
  rules.apply_to(a);
  a.batch_size = 1;
  a.num_queries = T;
  a.num_keys = S;
  a.query = query.as_input();
  a.key = key.as_input();
  a.value = value.as_input();
  a.num_sequences = static_cast<int64_t>(pieces.size());
  a.query_starts = query_starts.data();
  a.key_starts = key_starts.data();
  forward(a, output.as_output(), {}, threads);
  return output;
}

/// Returns how many tokens of `piece` have other outputs in `output`, where
/// they begin at token `first` of sequence b, than in `expected`.
template <typename X>
int64_t num_different(
    const Case& c,
    const Piece<X>& piece,
    Buffer<X>& expected,
    int64_t b,
    int64_t first,
    Buffer<X>& output) {
  int64_t count = 0;
  for (auto t = piece.begin; t < piece.end; ++t) {
    bool same = true;
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t e = 0; e < c.E; ++e) {
        same &= std::memcmp(
                    &output(b, h, first + t - piece.begin, e),
                    &expected(0, h, t, e),
                    sizeof(X)) == 0;
      }
    }
    count += same ? 0 : 1;
  }
  return count;
}

/// The size of the next piece of a prompt: often one token, or a few.
int64_t draw_piece(std::mt19937& random, int64_t left) {
  const int64_t most[] = {1, 4, 16, 50, 200, 1000};
  const auto size = 1 + static_cast<int64_t>(random()) % most[random() % 6];
  return std::min(left, size);
}

int64_t draw_block(std::mt19937& random) {
  return kBlockTokens * (1 + static_cast<int64_t>(random()) % 3);
}

Case draw_case(std::mt19937& random) {
  auto c = random_case(
      random,
      {/*B=*/{1},
       /*groups=*/{1, 2, 4, 7},
       /*T=*/{1},
       /*S=*/{1},
       /*D=*/{8, 20, 64}});
  c.causal = true;
  c.dropout = 0;
  if (c.window > 0) {
    c.window *= 10;
  }
  if (random() % 4 != 0) {
    c.chunk = 0;
  }
  return c;
}

TEMPLATE_TEST_CASE(
    "Batches and chunks do not change the bits of an output",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  using X = TestType;
  std::mt19937 random(7);
  for (int i = 0; i < random_cases(12); ++i) {
    const auto c = draw_case(random);
    const Rules<X> rules(c, random);
    INFO(description<X>(c));
    Text<X> text(c, 1 + static_cast<int64_t>(random() % 1400), random);
    const auto L = text.length;
    INFO("text of " << L << " tokens");
    const Piece<X> whole{&text, 0, L};
    auto expected = attend_in_cache<X>(rules, {whole}, L, threads_of(1));

    const auto threaded = attend_in_cache<X>(rules, {whole}, L, threads_of(3));
    CHECK(threaded.has_same_bits(expected));

    // In chunks, alone and with others.
    for (int64_t begin = 0; begin < L;) {
      const auto n = draw_piece(random, L - begin);
      std::vector<Piece<X>> batch{{&text, begin, begin + n}};
      begin += n;
      // Most chunks of one token are like others.
      if (n == 1 && random() % 8 != 0) {
        continue;
      }
      INFO("tokens " << batch[0].begin << " to " << batch[0].end);
      auto alone = attend_in_cache<X>(
          rules,
          batch,
          begin + static_cast<int64_t>(random() % 3),
          threads_of(1));
      CHECK(num_different(c, batch[0], expected, 0, 0, alone) == 0);
      if (random() % 3 != 0) {
        continue;
      }
      std::vector<std::unique_ptr<Text<X>>> others;
      int64_t longest = begin;
      for (size_t k = 0; k < 1 + random() % 4; ++k) {
        const auto length = n + static_cast<int64_t>(random() % 700);
        others.push_back(std::make_unique<Text<X>>(c, length, random));
        batch.push_back({others.back().get(), length - n, length});
        longest = std::max(longest, length);
      }
      const auto own = random() % batch.size();
      std::swap(batch[0], batch[own]);
      INFO("in a batch of " << batch.size() << ", at " << own);
      auto together = attend_in_cache<X>(rules, batch, longest, threads_of(2));
      CHECK(
          num_different(
              c,
              batch[own],
              expected,
              static_cast<int64_t>(own),
              0,
              together) == 0);
      auto in_blocks = attend_in_cache<X>(
          rules, batch, longest, threads_of(2), draw_block(random));
      CHECK(in_blocks.has_same_bits(together));
      auto packed = attend_packed<X>(rules, batch, threads_of(2));
      CHECK(
          num_different(
              c,
              batch[own],
              expected,
              0,
              static_cast<int64_t>(own) * n,
              packed) == 0);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Other sequences of a batch never change the bits of an output",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  if (each_instruction_set<TestType>() == InstructionSet::kAmxBf16) {
    return; // there the number of keys chooses between tiles and rows
  }
  using X = TestType;
  std::mt19937 random(8);
  for (int i = 0; i < random_cases(60); ++i) {
    const auto c = draw_case(random);
    Rules<X> rules(c, random);
    rules.same_bits = false;
    INFO(description<X>(c));
    const auto n = draw_piece(random, 300);
    std::vector<std::unique_ptr<Text<X>>> texts;
    std::vector<Piece<X>> batch;
    int64_t longest = 0;
    for (size_t k = 0; k < 1 + random() % 9; ++k) {
      const auto length = n + static_cast<int64_t>(random()) % 1200;
      texts.push_back(std::make_unique<Text<X>>(c, length, random));
      batch.push_back({texts.back().get(), length - n, length});
      longest = std::max(longest, length);
    }
    INFO(batch.size() << " sequences of " << n << " queries");
    auto together = attend_in_cache<X>(rules, batch, longest, threads_of(2));
    auto in_blocks = attend_in_cache<X>(
        rules, batch, longest, threads_of(3), draw_block(random));
    REQUIRE(in_blocks.has_same_bits(together));
    auto packed = attend_packed<X>(rules, batch, threads_of(2));
    for (size_t k = 0; k < batch.size(); ++k) {
      const auto b = static_cast<int64_t>(k);
      const auto& one = batch[k];
      auto alone = attend_in_cache<X>(rules, {one}, one.end, threads_of(1));
      for (int64_t h = 0; h < c.H; ++h) {
        for (int64_t t = 0; t < n; ++t) {
          for (int64_t e = 0; e < c.E; ++e) {
            const auto& expected = alone(0, h, t, e);
            const auto same = [&](const X& x) {
              return std::memcmp(&x, &expected, sizeof(X)) == 0;
            };
            REQUIRE(same(together(b, h, t, e)));
            REQUIRE(same(packed(0, h, b * n + t, e)));
          }
        }
      }
    }
  }
}

} // namespace same_bits_test
