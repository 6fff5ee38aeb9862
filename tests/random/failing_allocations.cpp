#include <random/magnitudes.h>
#include <random/problem.h>
#include <support/failing_allocations.h>

#include <memory>
#include <string>

// Lets some of the allocations of an attention fail.
namespace torch_attention::random {

void check_failing_allocations(Random& random) {
  auto problem =
      random.once_in(3) ? make_packed_problem(random) : make_problem(random);
  random.describe(problem.text());
  const auto kernel =
      random.one_of({Kernel::kFused, Kernel::kFused, Kernel::kReference});
  const auto expected = compute(problem, problem.dtype, kernel);
  const auto exact = compute(problem, torch::kDouble, Kernel::kReference);
  const auto m = magnitudes_of(problem);
  testing::Failures failures;
  failures.for_good = false;
  failures.threads = static_cast<int>(random.integer(1, 2));
  failures.first = random.integer(0, 40);
  failures.every = random.integer(20, 60);
  auto result = testing::fail_each_allocation(
      [&] {
        const auto found = std::make_shared<Tensors>();
        testing::Attempt attempt;
        attempt.run = [&, found] {
          *found = compute(problem, problem.dtype, kernel);
        };
        attempt.changed = [] { return std::string(); };
        attempt.wrong = [&, found] {
          // Products may be computed in another order.
          for (size_t i = 0; i < exact.size(); ++i) {
            check_close(
                name_of(i),
                (*found)[i],
                expected[i],
                exact[i],
                bound_of(problem, m, i));
          }
          return std::string();
        };
        return attempt;
      },
      failures);
  testing::remove_faults_of_libtorch(result, testing::faults_of_graphs());
  if (!result.faults.empty()) {
    fail(result.text());
  }
}

} // namespace torch_attention::random
