#include <cpu/cases.h>
#include <cpu/test.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

namespace large_positions_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

/// Two sequences of few tokens, since there are many positions to try: in one
/// part, rows, tiles and split keys.
std::vector<Case> cases() {
  std::vector<Case> result = {
      case_of(1, 1100, 8), case_of(3, 60, 8), case_of(40, 60, 8)};
  for (auto& c : result) {
    c.B = 2;
  }
  return result;
}

} // namespace

TEMPLATE_TEST_CASE(
    "Windows of any 64-bit number are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  const bool causal = GENERATE(false, true);
  for (auto c : cases()) {
    c.causal = causal;
    for (const auto window :
         {kMost,
          kMost - 1,
          int64_t{1} << 32,
          (int64_t{1} << 32) + 3,
          int64_t{1} << 31,
          (int64_t{1} << 31) - 1}) {
      c.window = window;
      check_by_definition<TestType>(c);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Offsets and lengths of any 64-bit number are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  const bool causal = GENERATE(false, true);
  const int64_t far = int64_t{1} << GENERATE(32, 62);
  for (auto c : cases()) {
    c.causal = causal;
    c.offsets = true;
    c.lengths = true;
    const std::initializer_list<int64_t> offsets{
        far, -far, far + 5, 5 - far, kMost, kLeast, kLeast + c.T, kMost - c.T};
    for (const auto offset : offsets) {
      // No window, a window that sees nothing, windows that reach the keys.
      const auto reach = offset > 0 && offset < kMost ? offset - 7 : kMost;
      for (const auto window : {int64_t{0}, int64_t{5}, reach, kMost}) {
        c.window = window;
        Problem<TestType> problem(c);
        CAPTURE(offset);
        problem.offsets[1] = offset;
        problem.lengths = {kMost, far};
        problem.compute();
        check_by_definition(problem);
        problem.lengths = {kLeast, -far};
        problem.compute();
        check_by_definition(problem);
      }
    }
  }
}

TEMPLATE_TEST_CASE(
    "Distances are counted from any position",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  // From beyond all keys, a query's distances differ by the same number
  // wherever it is, which the softmax takes out again.
  const bool after = GENERATE(false, true);
  for (auto c : cases()) {
    c.offsets = true;
    c.alibi = true;
    Problem<TestType> near(c);
    Problem<TestType> far(c);
    near.offsets = {after ? c.S : -c.T, after ? c.S : -c.T};
    far.offsets = {
        after ? int64_t{1} << 40 : -(int64_t{1} << 32), after ? kMost : kLeast};
    near.compute();
    far.compute();
    INFO(description<TestType>(c));
    CHECK(far.output.has_same_bits(near.output));
    CHECK(far.grad_query.has_same_bits(near.grad_query));
    CHECK(far.grad_key.has_same_bits(near.grad_key));
    CHECK(far.grad_value.has_same_bits(near.grad_value));
    CHECK(far.grad_slopes == near.grad_slopes);
    check_by_definition(near);
  }
}

} // namespace large_positions_test
