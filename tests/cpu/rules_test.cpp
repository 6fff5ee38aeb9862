#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace rules_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

/// Computes the problem for queries that begin at this position.
template <typename T>
void compute_at(Problem<T>& problem, int64_t offset) {
  problem.offsets = {offset};
  problem.arguments.query_offsets = problem.offsets.data();
  problem.compute();
}

template <typename Numbers>
bool are_0(const Numbers& numbers) {
  return std::all_of(
      numbers.begin(), numbers.end(), [](auto x) { return x == 0; });
}

} // namespace

TEMPLATE_TEST_CASE(
    "Windows to both sides are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.offsets = GENERATE(false, true);
  for (const int64_t window : {0, 1, 7, 64, 200}) {
    for (const int64_t after : {0, 1, 6, 63, 200}) {
      c.window = window;
      c.window_after = after;
      check_by_definition<TestType>(c);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Chunks are right, causal and not",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.B = 2;
  c.offsets = GENERATE(false, true);
  c.causal = GENERATE(false, true);
  for (const int64_t chunk : {1, 3, 16, 50, 64, 700, 2000}) {
    c.chunk = chunk;
    check_by_definition<TestType>(c);
  }
}

TEMPLATE_TEST_CASE(
    "What hidden keys hold changes nothing beside bands and chunks",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.hides_nan = true;
  c.lengths = true;
  c.chunk = GENERATE(0, 16);
  c.causal = c.chunk > 0;
  if (c.chunk == 0) {
    c.window = 9;
    c.window_after = 4;
  }
  check_by_definition<TestType>(c);
}

TEMPLATE_TEST_CASE(
    "Chunks and windows of any 64-bit number are right",
    "",
    float,
    double) {
  each_instruction_set<TestType>();
  auto c = case_of(GENERATE(3, 40), 60, 8);
  c.offsets = true;
  c.causal = GENERATE(false, true);
  const int64_t large = GENERATE(int64_t{1} << 33, int64_t{1} << 62, kMost);
  for (const auto offset :
       {large,
        -large,
        large - 7,
        kMost,
        kMost - 20,
        std::numeric_limits<int64_t>::min(),
        int64_t{-20},
        int64_t{20}}) {
    CAPTURE(offset);
    for (const bool chunks : {false, true}) {
      c.chunk = chunks ? large : 0;
      c.window_after = chunks ? -1 : large;
      Problem<TestType> problem(c);
      compute_at(problem, offset);
      check_by_definition(problem);
    }
  }
}

TEMPLATE_TEST_CASE(
    "A sink takes its share of the weights",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.sinks = true;
  c.causal = GENERATE(false, true);
  SECTION("beside anything") {
    c.B = 2;
    c.H = 4;
    c.mask = GENERATE(false, true);
    c.dropout = GENERATE(0.0, 0.3);
    check_by_definition<TestType>(c);
  }
  SECTION("and of a single key's") {
    c.S = 1;
    check_by_definition<TestType>(c);
  }
  SECTION("where it is far from the scores") {
    Problem<TestType> problem(c);
    problem.sinks[0] = 40;
    problem.sinks[1] = -40;
    problem.compute();
    check_by_definition(problem);
  }
  SECTION("which is all where it leaves none") {
    Problem<TestType> problem(c);
    std::fill(
        problem.sinks.begin(), problem.sinks.end(), Compute<TestType>(1e4));
    problem.compute();
    CHECK(are_0(problem.output.numbers()));
  }
}

TEMPLATE_TEST_CASE(
    "Distances beside a sink are those from any position",
    "",
    float,
    double,
    BFloat16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.offsets = true;
  c.alibi = true;
  c.sinks = true;
  for (const int64_t beyond : {3, 30, 200}) {
    for (const auto offset : {c.S + beyond, -c.T - beyond}) {
      CAPTURE(offset);
      Problem<TestType> problem(c);
      compute_at(problem, offset);
      check_by_definition(problem);
    }
  }
  Problem<TestType> far(c);
  compute_at(far, kMost);
  CHECK(are_0(far.output.numbers()));
}

TEMPLATE_TEST_CASE(
    "A sink of -inf changes nothing, and none a query that sees no key",
    "",
    float,
    double,
    BFloat16) {
  each_instruction_set<TestType>();
  auto c = GENERATE(from_range(each_way()));
  c.mask = true;
  Problem<TestType> without(c);
  c.sinks = true;
  Problem<TestType> with(c);
  std::fill(
      with.sinks.begin(), with.sinks.end(), Compute<TestType>(-kInfinity));
  without.compute();
  with.compute();
  INFO(description<TestType>(c));
  CHECK(with.output.has_same_bits(without.output));
  CHECK(with.grad_key.has_same_bits(without.grad_key));

  std::fill_n(with.mask.get(), c.H * c.T * c.S, true);
  std::fill(with.sinks.begin(), with.sinks.end(), Compute<TestType>(3));
  with.compute();
  CHECK(are_0(with.output.numbers()));
  CHECK(are_0(with.grad_sinks));
}

} // namespace rules_test
