#include <cpu/attention_by_definition.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace dropout_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

// A result that chance gives less than once in a million is a mistake.
constexpr double kSigmas = 5;

/// Returns the weights that are kept, [(b * H + h), t, s], found by equal
/// weights of values that are one-hot.
std::vector<bool> kept_weights(
    int64_t batch_size,
    int64_t heads,
    int64_t tokens,
    double dropout,
    unsigned seed,
    int64_t first_head = 0,
    int64_t all_heads = 0) {
  Case c;
  c.B = batch_size;
  c.H = heads;
  c.G = heads;
  c.T = tokens;
  c.S = tokens;
  c.D = 1;
  c.E = tokens;
  c.dropout = dropout;
  c.seed = seed;
  Problem<float> problem(c);
  problem.query.fill([] { return 0; });
  problem.value.fill([] { return 0; });
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t s = 0; s < c.S; ++s) {
        problem.value(b, h, s, s) = 1;
      }
    }
  }
  problem.arguments.dropout_first_head = first_head;
  problem.arguments.dropout_num_heads = all_heads;
  problem.compute_output();
  std::vector<bool> kept;
  for (const auto weight : problem.output.numbers()) {
    kept.push_back(weight != 0);
  }
  return kept;
}

/// Counts pairs (i, j) that agree, and returns by how many sigmas the number
/// differs from that of independent weights.
class Agreement {
 public:
  explicit Agreement(double dropout)
      : expected_(dropout * dropout + (1 - dropout) * (1 - dropout)) {}

  void add(bool first, bool second) {
    ++pairs_;
    agree_ += first == second ? 1 : 0;
  }

  double sigmas() const {
    return std::abs(agree_ - pairs_ * expected_) /
        std::sqrt(pairs_ * expected_ * (1 - expected_));
  }

 private:
  double expected_;
  double pairs_ = 0;
  double agree_ = 0;
};

} // namespace

TEST_CASE("Philox gives its published numbers") {
  uint32_t zeros[4] = {0, 0, 0, 0};
  philox(zeros, 0, 0);
  CHECK(zeros[0] == 0x5F6FB709);
  CHECK(zeros[1] == 0x0D893F64);
  CHECK(zeros[2] == 0x4F121F81);
  CHECK(zeros[3] == 0x4F730A48);
  uint32_t pi[4] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344};
  philox(pi, 0xA4093822, 0x299F31D0, /*rounds=*/10);
  CHECK(pi[0] == 0xD16CFE09);
  CHECK(pi[1] == 0x94FDCCEB);
  CHECK(pi[2] == 0x5001E420);
  CHECK(pi[3] == 0x24126EA1);
}

TEST_CASE("Dropout drops as often as asked, and keeps the mean") {
  each_instruction_set<float>();
  const double dropout = GENERATE(0.1, 0.5, 0.9);
  INFO("dropout " << dropout);
  Case c;
  c.H = 4;
  c.G = 4;
  c.T = 300;
  c.S = 300;
  c.D = 1;
  c.E = 1;
  c.dropout = dropout;
  Problem<float> problem(c);
  // Equal weights of values that are 1.
  problem.query.fill([] { return 0; });
  problem.value.fill([] { return 1; });
  problem.compute_output();
  double mean = 0;
  for (const auto output : problem.output.numbers()) {
    mean += output / static_cast<double>(c.H * c.T);
  }
  const auto weights = static_cast<double>(c.H * c.T * c.S);
  const auto sigma = std::sqrt(dropout / (1 - dropout) / weights);
  CHECK(std::abs(mean - 1) < kSigmas * sigma);
}

TEMPLATE_TEST_CASE(
    "Dropout of 1 drops everything",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  Case c;
  c.T = 20;
  c.dropout = 1;
  check_by_definition<TestType>(c);
  Problem<TestType> problem(c);
  problem.compute();
  for (const auto output : problem.output.numbers()) {
    CHECK(output == 0);
  }
}

TEST_CASE("Dropout is independent across heads, batches, tokens and seeds") {
  each_instruction_set<float>();
  const double dropout = GENERATE(0.1, 0.5);
  INFO("dropout " << dropout);
  constexpr int64_t kTokens = 160;
  constexpr int64_t kHeads = 2;
  const auto kept = kept_weights(2, kHeads, kTokens, dropout, 1);
  const auto other_seed = kept_weights(2, kHeads, kTokens, dropout, 2);
  const auto at = [&](int64_t b, int64_t h, int64_t t, int64_t s) -> bool {
    return kept[((b * kHeads + h) * kTokens + t) * kTokens + s];
  };
  Agreement heads(dropout);
  Agreement batches(dropout);
  Agreement seeds(dropout);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t s = 0; s < kTokens; ++s) {
      heads.add(at(0, 0, t, s), at(0, 1, t, s));
      batches.add(at(0, 0, t, s), at(1, 0, t, s));
      seeds.add(at(0, 0, t, s), other_seed[t * kTokens + s]);
    }
  }
  CHECK(heads.sigmas() < kSigmas);
  CHECK(batches.sigmas() < kSigmas);
  CHECK(seeds.sigmas() < kSigmas);

  // Weights 1 to 4 tokens away share a call of Philox, or have the next one.
  for (const int64_t distance : {1, 2, 3, 4}) {
    INFO("distance " << distance);
    Agreement queries(dropout);
    Agreement keys(dropout);
    for (int64_t t = 0; t + distance < kTokens; ++t) {
      for (int64_t s = 0; s < kTokens; ++s) {
        queries.add(at(0, 0, t, s), at(0, 0, t + distance, s));
        keys.add(at(0, 0, s, t), at(0, 0, s, t + distance));
      }
    }
    CHECK(queries.sigmas() < kSigmas);
    CHECK(keys.sigmas() < kSigmas);
  }
}

TEST_CASE("Some of the heads drop what they drop among all") {
  each_instruction_set<float>();
  constexpr int64_t kTokens = 20;
  constexpr int64_t kAll = 6;
  constexpr int64_t kFirst = 3;
  constexpr int64_t kSome = 2;
  const auto all = kept_weights(2, kAll, kTokens, 0.5, 1);
  const auto some = kept_weights(2, kSome, kTokens, 0.5, 1, kFirst, kAll);
  constexpr int64_t kHead = kTokens * kTokens;
  for (int64_t b = 0; b < 2; ++b) {
    const auto own = some.begin() + b * kSome * kHead;
    const auto among_all = all.begin() + (b * kAll + kFirst) * kHead;
    CHECK(std::equal(own, own + kSome * kHead, among_all));
  }
}

TEST_CASE("Output and gradients under dropout are right in the mean") {
  each_instruction_set<double>();
  Case c;
  c.H = 2;
  c.G = 1;
  c.T = 10;
  c.S = 14;
  c.D = 4;
  c.E = 3;
  c.causal = true;
  const auto results_of = [](const Problem<double>& problem) {
    std::vector<double> all;
    for (const auto* buffer :
         {&problem.output,
          &problem.grad_query,
          &problem.grad_key,
          &problem.grad_value}) {
      const auto numbers = buffer->numbers();
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    return all;
  };
  Problem<double> problem(c);
  problem.compute();
  const auto expected = results_of(problem);

  constexpr int kSeeds = 2000;
  problem.arguments.dropout = 0.25;
  std::vector<double> sum(expected.size());
  std::vector<double> sum_of_squares(expected.size());
  for (int seed = 0; seed < kSeeds; ++seed) {
    problem.arguments.dropout_seed = static_cast<uint64_t>(seed);
    problem.compute();
    const auto results = results_of(problem);
    for (size_t i = 0; i < results.size(); ++i) {
      const auto difference = results[i] - expected[i];
      sum[i] += difference;
      sum_of_squares[i] += difference * difference;
    }
  }
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto mean = sum[i] / kSeeds;
    const auto variance = sum_of_squares[i] / kSeeds - mean * mean;
    const auto sigma = std::sqrt(std::max(0.0, variance) / kSeeds) + 1e-12;
    largest = std::max(largest, std::abs(mean) / sigma);
  }
  CHECK(largest < kSigmas);
}

} // namespace dropout_test
