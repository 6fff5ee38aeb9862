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
  // Rows alone, full tiles, and tiles with remainder rows.
  each_instruction_set<TestType>();
  for (const auto heads : sizes_of({2, 3, 7, 12, 13, 16, 17, 33, 71})) {
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
    "Rows are right for heads of whole vectors and of others",
    "",
    float,
    BFloat16,
    Float16) {
  // Pairs of bfloat16 are read in place, or copied where they do not fill a
  // vector or rows are not laid out as pairs.
  each_instruction_set<TestType>();
  for (const auto rows : sizes_of({1, 4, 9, 24, 25, 41})) {
    for (const int64_t D : {32, 33, 64, 80}) {
      for (const auto layout :
           {Layout::kHeadsFirst, Layout::kTokensFirst, Layout::kWithGaps}) {
        auto c = case_of(1, 131, D);
        c.E = D == 64 ? 24 : D;
        c.G = 2;
        c.H = c.G * rows;
        c.lengths = true;
        c.bias = rows == 9;
        c.layout = layout;
        check_by_definition<TestType>(c);
      }
    }
  }
}

TEMPLATE_TEST_CASE(
    "Heads that read the same keys have their own rules",
    "",
    float,
    double) {
  each_instruction_set<TestType>();
  std::mt19937 random(11);
  for (int i = 0; i < random_cases(150); ++i) {
    auto c = random_case(
        random,
        {{1, 2},
         {2, 4, 9, 18, 33},
         {1, 2, 3, 4, 7, 19},
         {1, 5, 63, 64, 130, 1100},
         {8, 17, 40}});
    // Dropout has code of its own.
    c.dropout = 0;
    check_by_definition<TestType>(c);
  }
}

} // namespace grouped_heads_test
