#include <random/magnitudes.h>
#include <random/problem.h>

// Compares packed sequences with each of them alone.
namespace torch_attention::random {

void check_packed(Random& random) {
  const auto problem = make_packed_problem(random);
  random.describe(problem.text());
  const auto one_by_one = &Problem::attend_one_by_one;
  const auto reference =
      compute(problem, problem.dtype, Kernel::kReference, one_by_one);
  const auto exact =
      compute(problem, torch::kDouble, Kernel::kReference, one_by_one);
  const auto m = magnitudes_of(problem);
  for (const auto kernel : {Kernel::kFused, Kernel::kReference}) {
    const auto packed = compute(problem, problem.dtype, kernel);
    for (size_t i = 0; i < exact.size(); ++i) {
      check_close(
          c10::str(name_of(i), " by ", kernel),
          packed[i],
          reference[i],
          exact[i],
          bound_of(problem, m, i));
    }
  }
}

} // namespace torch_attention::random
