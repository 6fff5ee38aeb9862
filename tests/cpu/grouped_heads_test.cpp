#include <cpu/cases.h>
#include <cpu/test.h>

namespace grouped_heads_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEMPLATE_TEST_CASE(
    "Heads that read the same keys are right for every number of rows",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  // Rows alone, tiles that are full, and those with rows beside them.
  each_instruction_set();
  for (const int64_t heads : {2, 3, 7, 12, 13, 16, 17, 33, 71}) {
    for (const int64_t T : {1, 2, 5}) {
      auto c = case_of(T, 130, 24);
      c.G = 2;
      c.H = c.G * heads;
      c.causal = true;
      check_by_definition<TestType>(c);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Heads that read the same keys have their own rules",
    "",
    float,
    double) {
  each_instruction_set();
  std::mt19937 random(11);
  for (int i = 0; i < 150; ++i) {
    auto c = random_case(
        random,
        {{1, 2},
         {2, 4, 9, 18, 33},
         {1, 2, 3, 4, 7, 19},
         {1, 5, 63, 64, 130, 1100},
         {8, 17, 40}});
    // It has a way of its own.
    c.dropout = 0;
    check_by_definition<TestType>(c);
  }
}

} // namespace grouped_heads_test
