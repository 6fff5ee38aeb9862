#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace non_finite_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

/// Draws a case without a softcap, which makes infinite scores finite.
Case random_case(std::mt19937& random) {
  auto c = testing::random_case(
      random,
      {{1, 2},
       {1, 2},
       {1, 2, 4, 17, 40, 70},
       {1, 2, 40, 130, 1100},
       {3, 16, 20}});
  c.softcap = 0;
  return c;
}

/// Sets a few numbers of the inputs to `bad`.
template <typename X>
void spoil(Problem<X>& problem, double bad, std::mt19937& random) {
  const auto& c = problem.sizes;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const auto spoil_one =
      [&](Buffer<X>& x, int64_t heads, int64_t n, int64_t D) {
        x(below(c.B), below(heads), below(n), below(D)) = stored<X>(bad);
      };
  const auto where = 1 + below(15);
  if ((where & 1) != 0) {
    spoil_one(problem.query, c.H, c.T, c.D);
  }
  if ((where & 2) != 0) {
    spoil_one(problem.key, c.G, c.S, c.D);
  }
  if ((where & 4) != 0) {
    spoil_one(problem.value, c.G, c.S, c.E);
  }
  if ((where & 8) != 0) {
    spoil_one(problem.grad_output, c.H, c.T, c.E);
  }
}

} // namespace

TEMPLATE_TEST_CASE(
    "NaN and infinities go where the definition takes them, nowhere else",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(17 + sizeof(TestType));
  for (int i = 0; i < random_cases(120); ++i) {
    const double bad = i % 3 == 0 ? kInfinity : i % 3 == 1 ? -kInfinity : kNaN;
    auto c = random_case(random);
    if (i % 9 == 2) {
      // The softcap's slope is 0 at infinity: 0 times infinity would be NaN.
      c.softcap = 1.5;
    }
    Problem<TestType> problem(c);
    spoil(problem, bad, random);
    CAPTURE(bad);
    problem.compute();
    check_by_definition(problem);
  }
}

TEMPLATE_TEST_CASE(
    "Infinities of hidden keys do not come back where dropout takes their "
    "weights",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  constexpr int64_t kHidden = 5;
  // Dropout so high that it drops the hidden key for all queries of some tiles.
  auto c = case_of(40, 64);
  c.mask = true;
  c.dropout = 0.95;
  for (c.seed = 1; c.seed <= 12; ++c.seed) {
    Problem<TestType> problem(c);
    for (int64_t h = 0; h < c.H; ++h) {
      problem.key(0, h, kHidden, 0) = stored<TestType>(kInfinity);
      for (int64_t t = 0; t < c.T; ++t) {
        problem.mask[(h * c.T + t) * c.S + kHidden] = true;
      }
    }
    problem.compute();
    check_by_definition(problem);
  }
}

TEMPLATE_TEST_CASE(
    "NaN reaches a query from the lightest of weights",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  auto c = case_of(GENERATE(1, 30), 100);
  c.causal = GENERATE(false, true);
  Problem<TestType> problem(c);
  // The first key has all of the weight, to the last bit.
  problem.key.fill([] { return 0.0; });
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t t = 0; t < c.T; ++t) {
      problem.query(0, h, t, 0) = stored<TestType>(100);
    }
    problem.key(0, h, 0, 0) = stored<TestType>(1000);
    problem.value(0, h, 60, 3) = stored<TestType>(kNaN);
  }
  INFO(description<TestType>(c));
  problem.compute();
  bool reached = true;
  bool kept_out = true;
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t t = 0; t < c.T; ++t) {
      const bool sees = !c.causal || c.S - c.T + t >= 60;
      const bool is_nan = std::isnan(number(problem.output(0, h, t, 3)));
      reached = reached && (is_nan || !sees);
      kept_out = kept_out && (!is_nan || sees);
    }
  }
  CHECK(reached);
  CHECK(kept_out);
}

TEMPLATE_TEST_CASE(
    "Scores that overflow to -inf hide their keys",
    "",
    float,
    double) {
  each_instruction_set<TestType>();
  auto c = case_of(GENERATE(1, 30), 100);
  // Infinite scores of all keys, or of the last ones.
  const int64_t first = GENERATE(0, 40);
  Problem<TestType> problem(c);
  const auto large = static_cast<double>(lowest<TestType>()) / -4;
  problem.query.for_each(
      [&](TestType& x) { x = static_cast<TestType>(large); });
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t s = 0; s < c.S; ++s) {
      for (int64_t d = 0; d < c.D; ++d) {
        problem.key(0, h, s, d) = static_cast<TestType>(s < first ? 0 : -100);
      }
    }
  }
  INFO(description<TestType>(c));
  problem.compute();
  const auto seen = std::min<int64_t>(first, 40);
  bool right = true;
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t t = 0; t < c.T; ++t) {
      for (int64_t e = 0; e < c.E; ++e) {
        double mean = 0;
        for (int64_t s = 0; s < seen; ++s) {
          mean += number(problem.value(0, h, s, e)) / static_cast<double>(seen);
        }
        const auto output = number(problem.output(0, h, t, e));
        right = right && std::abs(output - mean) < 1e-5;
      }
    }
  }
  CHECK(right);
}

} // namespace non_finite_test
