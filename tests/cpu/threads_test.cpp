#include <cpu/test.h>

namespace threads_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEMPLATE_TEST_CASE(
    "Any number of threads gives the same bits",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  for (const int64_t T : {1, 20, 200}) {
    Case c;
    c.B = 2;
    c.H = 4;
    c.T = T;
    c.S = T + 600;
    c.causal = true;
    c.dropout = 0.2;
    INFO(description<TestType>(c));
    Problem<TestType> alone(c);
    alone.compute(threads_of(1));
    for (const int64_t count : {2, 8}) {
      INFO(count << " threads");
      Problem<TestType> together(c);
      together.compute(threads_of(count));
      CHECK(together.output.has_same_bits(alone.output));
      CHECK(together.maximum == alone.maximum);
      CHECK(together.sum == alone.sum);
      CHECK(together.grad_query.has_same_bits(alone.grad_query));
      CHECK(together.grad_key.has_same_bits(alone.grad_key));
      CHECK(together.grad_value.has_same_bits(alone.grad_value));
    }
  }
}

TEST_CASE("Many callers at once do not disturb each other") {
  each_instruction_set<float>();
  Case c;
  c.T = 40;
  c.S = 60;
  Problem<float> alone(c);
  alone.compute();
  // Other sizes need other amounts of the memory that each thread keeps.
  Case larger = c;
  larger.D = 33;
  Problem<double> alone_too(larger);
  alone_too.compute();
  constexpr int64_t kCallers = 4;
  bool same[kCallers] = {};
  threads_of(kCallers).parallel_for(kCallers, [&](int64_t caller) {
    bool all = true;
    for (int i = 0; i < 5; ++i) {
      Problem<float> one(c);
      one.compute();
      Problem<double> other(larger);
      other.compute();
      all &= one.grad_key.has_same_bits(alone.grad_key) &&
          other.grad_key.has_same_bits(alone_too.grad_key);
    }
    same[caller] = all;
  });
  for (const bool caller_has_same : same) {
    CHECK(caller_has_same);
  }
}

} // namespace threads_test
