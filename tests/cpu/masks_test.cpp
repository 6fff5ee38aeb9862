#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <initializer_list>
#include <random>

namespace masks_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

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
  each_instruction_set<TestType>();
  std::mt19937 random(sizeof(TestType));
  for (int i = 0; i < random_cases(60); ++i) {
    auto c = random_case(
        random,
        {{1, 2, 3},
         {1, 2, 3},
         {1, 2, 3, 15, 16, 17, 33, 64, 65, 100, 129},
         {1, 2, 15, 17, 64, 65, 130, 200},
         {1, 3, 5, 8, 16, 17, 20, 32, 33}});
    c.hides_nan = random() % 2 == 0;
    check_by_definition<TestType>(c);
  }
}

TEMPLATE_TEST_CASE(
    "A query that sees no key gives 0, and logsumexp -inf",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));

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

} // namespace masks_test
