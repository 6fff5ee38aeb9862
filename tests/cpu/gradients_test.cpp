#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gradients_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

TEST_CASE("Gradients are what the output does when the inputs change") {
  each_instruction_set<double>();
  Case c;
  c.H = 2;
  c.G = 1;
  c.T = 9;
  c.S = 13;
  c.D = 5;
  c.E = 3;
  c.causal = true;
  c.bias = true;
  c.dropout = 0.25;
  c.softcap = GENERATE(0.0, 1.25);
  c.alibi = c.softcap > 0;
  INFO(description<double>(c));
  Problem<double> problem(c);
  problem.compute();
  const auto loss = [&] {
    problem.compute_output();
    const auto output = problem.output.numbers();
    const auto grad_output = problem.grad_output.numbers();
    double sum = 0;
    for (size_t i = 0; i < output.size(); ++i) {
      sum += output[i] * grad_output[i];
    }
    return sum;
  };
  const auto largest_difference = [&](Buffer<double>& x,
                                      const Buffer<double>& gradient) {
    constexpr double kStep = 1e-5;
    const auto numbers = gradient.numbers();
    double largest = 0;
    size_t i = 0;
    x.for_each([&](double& element) {
      const auto before = element;
      element = before + kStep;
      const auto above = loss();
      element = before - kStep;
      const auto below = loss();
      element = before;
      const auto slope = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(slope - numbers[i++]));
    });
    return largest;
  };
  CHECK(largest_difference(problem.query, problem.grad_query) < 1e-8);
  CHECK(largest_difference(problem.key, problem.grad_key) < 1e-8);
  CHECK(largest_difference(problem.value, problem.grad_value) < 1e-8);
}

} // namespace gradients_test
