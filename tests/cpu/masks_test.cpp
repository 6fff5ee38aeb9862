#include <cpu/test.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <random>

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

/// Sizes and everything that hides, drawn at random.
Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return from.begin()[random() % from.size()];
  };
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  Case c;
  c.seed = static_cast<unsigned>(random());
  c.B = pick({1, 2, 3});
  c.G = pick({1, 2});
  c.H = c.G * pick({1, 2, 3});
  c.T = pick({1, 2, 3, 15, 16, 17, 33, 64, 65, 100, 129});
  c.S = one_in(2) ? c.T : pick({1, 2, 15, 17, 64, 65, 130, 200});
  c.D = pick({1, 3, 8, 16, 17, 32, 33});
  c.E = one_in(2) ? c.D : pick({1, 5, 16, 20});
  c.causal = one_in(2);
  c.window = one_in(3) ? pick({1, 2, 5, 16, 40, 70}) : 0;
  c.offsets = one_in(4);
  c.lengths = one_in(3);
  c.bias = one_in(4);
  c.mask = one_in(4);
  c.same_for_queries = one_in(2);
  c.hides_nan = one_in(2);
  c.dropout = one_in(3) ? 0.3 : 0;
  c.softcap = one_in(4) ? 1.5 : 0;
  c.alibi = one_in(4);
  c.wide = one_in(2);
  c.layout = static_cast<Layout>(random() % 3);
  return c;
}

/// Every query of a computed problem saw no key.
template <typename X>
void check_blind(const Problem<X>& computed) {
  const auto are_0 = [](const Buffer<X>& x) {
    const auto numbers = x.numbers();
    return std::all_of(
        numbers.begin(), numbers.end(), [](double n) { return n == 0; });
  };
  CHECK(are_0(computed.output));
  CHECK(are_0(computed.grad_query));
  CHECK(are_0(computed.grad_key));
  CHECK(are_0(computed.grad_value));
  const auto logsumexp = computed.logsumexp();
  CHECK(std::all_of(logsumexp.begin(), logsumexp.end(), [](double x) {
    return x == -kInfinity;
  }));
}

} // namespace

TEMPLATE_TEST_CASE(
    "Mixtures of all that hides keys or changes scores are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set();
  std::mt19937 random(sizeof(TestType));
  for (int i = 0; i < 60; ++i) {
    check_by_definition<TestType>(random_case(random));
  }
}

TEMPLATE_TEST_CASE(
    "A query that sees no key gives 0, and logsumexp -inf",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set();
  // One query, rows, tiles; in one part, and split over keys.
  const auto T = GENERATE(1, 3, 40);
  const auto S = GENERATE(50, 1100);
  Case c;
  c.T = T;
  c.S = S;
  c.D = 8;
  c.E = 8;

  SECTION("behind a mask") {
    c.mask = true;
    c.same_for_queries = GENERATE(false, true);
    Problem<TestType> problem(c);
    const auto rows = c.same_for_queries ? 1 : c.T;
    std::fill_n(problem.mask.get(), c.H * rows * c.S, true);
    INFO(description<TestType>(c));
    problem.compute();
    check_blind(problem);
  }
  SECTION("under a bias of -inf") {
    c.bias = true;
    Problem<TestType> problem(c);
    std::fill(
        problem.bias.begin(), problem.bias.end(), stored<TestType>(-kInfinity));
    INFO(description<TestType>(c));
    problem.compute();
    check_blind(problem);
  }
  SECTION("without keys, whose memory is not read") {
    c.lengths = true;
    Problem<TestType> problem(c);
    problem.lengths = {0};
    problem.arguments.key_lengths = problem.lengths.data();
    problem.key.fill([] { return kNaN; });
    problem.value.fill([] { return kNaN; });
    INFO(description<TestType>(c));
    problem.compute();
    check_blind(problem);
  }
  SECTION("before the first key") {
    c.causal = true;
    c.offsets = true;
    Problem<TestType> problem(c);
    problem.offsets = {-c.T};
    problem.arguments.query_offsets = problem.offsets.data();
    INFO(description<TestType>(c));
    problem.compute();
    check_blind(problem);
  }
  SECTION("where the last key has left the window") {
    c.window = 5;
    c.offsets = true;
    Problem<TestType> problem(c);
    problem.offsets = {c.S + 4};
    problem.arguments.query_offsets = problem.offsets.data();
    INFO(description<TestType>(c));
    problem.compute();
    check_blind(problem);
  }
}
