#include <cpu/cases.h>
#include <cpu/test.h>

#include <algorithm>
#include <utility>

namespace sizes_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEMPLATE_TEST_CASE(
    "Attention is right for numbers of tokens around those of a tile",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const auto size :
       sizes_of({1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129})) {
    for (const bool causal : {false, true}) {
      auto c = case_of(size, size, 24);
      c.causal = causal;
      check_by_definition<TestType>(c);
      c.T = std::max<int64_t>(1, size / 3);
      check_by_definition<TestType>(c);
      std::swap(c.T, c.S);
      check_by_definition<TestType>(c);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Attention is right for every head_dim",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const auto head_dim :
       sizes_of({1,  2,  3,  5,  7,  8,  9,   15,  16,  17,  31,  33,
                 40, 63, 64, 65, 80, 96, 127, 128, 129, 192, 255, 256})) {
    Case c;
    c.S = 70;
    c.D = head_dim;
    c.causal = true;
    c.layout = Layout::kWithGaps;
    // A decode step, then tiles.
    for (const int64_t T : {1, 37}) {
      c.T = T;
      c.E = head_dim;
      check_by_definition<TestType>(c);
      c.E = 257 - head_dim;
      check_by_definition<TestType>(c);
    }
  }
}

TEMPLATE_TEST_CASE(
    "Attention of nothing is nothing, and of no keys 0",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const int64_t size : {0, 1, 20}) {
    Case no_batch;
    no_batch.B = 0;
    no_batch.T = size;
    check_by_definition<TestType>(no_batch);
    Case no_queries;
    no_queries.T = 0;
    no_queries.S = size;
    check_by_definition<TestType>(no_queries);
    Case no_keys;
    no_keys.T = size;
    no_keys.S = 0;
    check_by_definition<TestType>(no_keys);
    Case no_values;
    no_values.T = size;
    no_values.E = 0;
    check_by_definition<TestType>(no_values);
  }
}

TEMPLATE_TEST_CASE(
    "Many heads take several tiles of queries at once",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  for (const auto layout :
       {Layout::kHeadsFirst, Layout::kTokensFirst, Layout::kWithGaps}) {
    Case c;
    c.H = 64;
    c.G = 32;
    c.T = 130;
    c.S = 140;
    c.D = 5;
    c.E = 8;
    c.causal = true;
    c.layout = layout;
    check_by_definition<TestType>(c);
  }
}

TEMPLATE_TEST_CASE("Large heads take keys by chunks", "", float, double) {
  each_instruction_set<TestType>();
  check_by_definition<TestType>(case_of(20, 300, 256));
}

TEMPLATE_TEST_CASE("Long sequences are right", "", float, double) {
  each_instruction_set<TestType>();
  for (const bool causal : {false, true}) {
    Case c;
    c.H = 1;
    c.G = 1;
    c.T = 500;
    c.S = 500;
    c.D = 64;
    c.E = 64;
    c.causal = causal;
    c.layout = Layout::kTokensFirst;
    check_by_definition<TestType>(c);
    c.window = 100;
    c.dropout = 0.1;
    check_by_definition<TestType>(c);
  }
}

} // namespace sizes_test
