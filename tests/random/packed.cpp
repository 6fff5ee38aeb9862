#include <random/magnitudes.h>
#include <random/problem.h>

// Compares packed sequences with each of them alone.
namespace torch_attention::random {

void check_packed(Random& random) {
  const auto problem = make_packed_problem(random);
  random.describe(problem.text());
  check_kernels(problem, problem, &Problem::attend_one_by_one);
}

} // namespace torch_attention::random
