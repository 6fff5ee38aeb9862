#include <cpu/test.h>

namespace splits_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEMPLATE_TEST_CASE(
    "Few queries of many keys, split and joined again, are right",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const int64_t T : {1, 3, 20, 70}) {
    Case c;
    c.H = 2;
    c.G = 1;
    c.T = T;
    c.S = 1700;
    c.D = 16;
    c.E = 8;
    c.causal = true;
    check_by_definition<TestType>(c);
    c.B = 2;
    c.lengths = true;
    check_by_definition<TestType>(c);
    c.window = 700;
    c.mask = true;
    c.dropout = 0.1;
    check_by_definition<TestType>(c);
  }
}

TEMPLATE_TEST_CASE(
    "Gradients of queries are sums over splits of the keys",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  Case c;
  c.H = 1;
  c.G = 1;
  c.T = 600;
  c.S = 1100;
  c.D = 8;
  c.E = 8;
  c.causal = true;
  check_by_definition<TestType>(c);
}

} // namespace splits_test
