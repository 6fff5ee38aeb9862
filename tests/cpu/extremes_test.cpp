#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace extremes_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEMPLATE_TEST_CASE(
    "Small and large scores are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const double scale : {1e-30, 1e-4, 30.0, 1000.0}) {
    if (sizeof(TestType) == 2 && scale > 100) {
      // Multiplies the rounding error of the output into the gradients.
      continue;
    }
    auto c = case_of(90, 90, 32);
    c.causal = true;
    c.scale = scale;
    // An error of 1e-7 in a score of 3000 is one of 1e-4 in its weight.
    const auto rounding = sizeof(Compute<TestType>) == 8 ? 1e-10 : 2e-4;
    check_by_definition<TestType>(c, scale > 1 ? rounding * scale : 0);
  }
}

TEMPLATE_TEST_CASE(
    "A bias of the lowest number hides softly",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  // Hides all keys of the first queries, which then weigh the same, and every
  // other key of the rest. In tiles, and in rows whose keys are split.
  constexpr int64_t kBlind = 7;
  const int64_t T = GENERATE(1, 20);
  auto c = case_of(T, T == 1 ? 1100 : 40);
  c.causal = true;
  c.bias = true;
  Problem<TestType> problem(c);
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t s = 0; s < c.S; ++s) {
      const bool hidden = t < kBlind || s % 2 == 1;
      problem.bias[t * c.S + s] =
          hidden ? lowest<TestType>() : stored<TestType>(0);
    }
  }
  problem.compute();
  // The lowest number of float16 does not round the scores away.
  const bool float16 = std::is_same_v<TestType, Float16>;
  check_by_definition(problem, float16 ? 0.01 : 0);
}

TEMPLATE_TEST_CASE(
    "NaN and infinity reach the queries that see them and no others",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  // Half precision cannot store the unusual bits.
  const double nan = sizeof(TestType) == 2 ? kNaN : unusual_nan();
  const double bad = GENERATE_COPY(kNaN, nan, kInfinity);
  const bool in_key = GENERATE(false, true);
  for (const int64_t T : {1, 3, 16, 33, 100, 200}) {
    auto c = case_of(T, 200);
    c.causal = true;
    INFO(description<TestType>(c));
    INFO((in_key ? "a key has " : "a value has ") << bad);
    const auto where = c.S - c.T / 2 - 1;
    Problem<TestType> good(c);
    Problem<TestType> spoiled(c);
    for (int64_t g = 0; g < c.G; ++g) {
      (in_key ? spoiled.key : spoiled.value)(0, g, where, 3) =
          stored<TestType>(bad);
    }
    good.compute();
    spoiled.compute();

    bool past_is_same = true;
    bool future_is_reached = true;
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t t = 0; t < c.T; ++t) {
        const auto same = [&](Buffer<TestType>& x, Buffer<TestType>& y) {
          bool result = true;
          for (int64_t i = 0; i < 16; ++i) {
            result &= number(x(0, h, t, i)) == number(y(0, h, t, i));
          }
          return result;
        };
        const bool same_output = same(good.output, spoiled.output);
        if (where > c.S - c.T + t) {
          past_is_same &=
              same_output && same(good.grad_query, spoiled.grad_query);
        } else if (!in_key || std::isnan(bad)) {
          // An infinite score may be -inf, and weigh nothing.
          future_is_reached &= std::isnan(bad)
              ? std::isnan(number(spoiled.output(0, h, t, 3)))
              : !same_output;
        }
      }
    }
    CHECK(past_is_same);
    CHECK(future_is_reached);
  }
}

} // namespace extremes_test
