#include <cpu/blocks.h>
#include <cpu/cases.h>
#include <cpu/test.h>

#include <cstdint>
#include <random>
#include <vector>

namespace blocks_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

/// Attention over blocks of `size` tokens has the bits of attention over keys
/// and values in one piece.
template <typename X>
void check_blocks(const Case& c, int64_t size, int64_t threads) {
  INFO(description<X>(c) << ", blocks of " << size << ", threads " << threads);
  Problem<X> in_one_piece(c);
  in_one_piece.compute_output(threads_of(threads));
  Problem<X> in_blocks(c);
  const auto lengths = c.lengths
      ? in_blocks.lengths
      : std::vector<int64_t>(static_cast<size_t>(c.B), c.S);
  const Blocks<X> keys(in_blocks.key, c.G, c.D, lengths, size);
  const Blocks<X> values(in_blocks.value, c.G, c.E, lengths, size);
  auto& a = in_blocks.arguments;
  a.blocks = {keys.table(), values.table(), keys.per_sequence(), size};
  a.key = {nullptr, {0, size * c.D, c.D}};
  a.value = {nullptr, {0, size * c.E, c.E}};
  in_blocks.compute_output(threads_of(threads));
  CHECK(in_blocks.output.has_same_bits(in_one_piece.output));
  CHECK(in_blocks.maximum == in_one_piece.maximum);
  CHECK(in_blocks.sum == in_one_piece.sum);
}

TEMPLATE_TEST_CASE(
    "Keys in blocks give the bits of keys in one piece",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const int64_t T : {1, 3, 20, 70, 300}) {
    for (const int64_t S : {1, 63, 64, 65, 130, 700, 1700}) {
      Case c = case_of(T, S, 64);
      c.H = 4;
      c.causal = true;
      check_blocks<TestType>(c, 64, 1);
      c.window = 100;
      c.lengths = true;
      c.B = 2;
      check_blocks<TestType>(c, 128, 2);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Keys in blocks give the same bits, where enough are read to prefetch",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  for (const int64_t T : {1, 100}) {
    Case c = case_of(T, 5000, 64);
    c.H = c.G = 4;
    c.B = 2;
    c.causal = true;
    c.lengths = true;
    check_blocks<TestType>(c, 64, 2);
  }
}

TEMPLATE_TEST_CASE(
    "Random attention over blocks has the bits of attention in one piece",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(7);
  const Sizes sizes{
      {1, 3},
      {1, 2, 5},
      {1, 2, 7, 16, 17, 33, 49, 65, 130},
      {1, 40, 64, 65, 200, 520, 1100},
      {1, 8, 16, 20, 33, 64, 96}};
  const auto cases = random_cases(150);
  for (int i = 0; i < cases; ++i) {
    auto c = random_case(random, sizes);
    // Blocks have no gaps, which would be packed otherwise.
    c.layout = Layout::kHeadsFirst;
    c.hides_nan = random() % 3 == 0;
    const auto size = kBlockTokens * static_cast<int64_t>(1 + random() % 3);
    check_blocks<TestType>(c, size, 1);
  }
}

TEMPLATE_TEST_CASE(
    "What is added up does not depend on where a window begins",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const int64_t T : {1, 40}) {
    Case c = case_of(T, 400, 32);
    c.causal = true;
    c.window = 150 + T;
    Problem<TestType> all(c);
    // Keys that no window sees, and those that only the first queries see, get
    // weights of 0, so that a larger window computes the same.
    const auto first = c.S - 150;
    for (int64_t g = 0; g < c.G; ++g) {
      for (int64_t s = 0; s < first; ++s) {
        for (int64_t d = 0; d < c.D; ++d) {
          all.key(0, g, s, d) = stored<TestType>(-100);
        }
      }
    }
    all.query.fill([] { return 10.0; });
    all.compute_output();
    Problem<TestType> larger(c);
    larger.key = all.key;
    larger.query = all.query;
    larger.arguments.key = larger.key.as_input();
    larger.arguments.query = larger.query.as_input();
    for (const int64_t more : {1, 7, 30, 64, 101}) {
      INFO(description<TestType>(c) << ", a window larger by " << more);
      larger.arguments.rule.window = c.window + more;
      larger.compute_output();
      CHECK(larger.output.has_same_bits(all.output));
      CHECK(larger.sum == all.sum);
    }
  }
}

} // namespace blocks_test
