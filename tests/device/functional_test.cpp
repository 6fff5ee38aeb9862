// Drawn attentions on the device, against the reference on the CPU.

#include <device/log.h>
#include <device/memory.h>
#include <device/sdpa.h>

#include <random/magnitudes.h>
#include <random/problem.h>
#include <support/test.h>

namespace device_functional_test {

using namespace torch_attention;
using torch_attention::testing::choose;
using torch_attention::testing::device;
using namespace torch_attention::random;

namespace {

/// Returns the problem with all that users have on the device there. Counts
/// may stay on the CPU.
Problem on_device(Random& random, Problem problem) {
  const auto move = [](const torch::Tensor& x) {
    return x.defined() ? x.to(device()) : x;
  };
  const auto sometimes = [&](const torch::Tensor& x) {
    return random.once_in(2) ? move(x) : x;
  };
  for (auto& base : problem.bases) {
    base = move(base);
  }
  problem.grad_output = move(problem.grad_output);
  auto& options = problem.options;
  options.mask(move(options.mask()))
      .key_lengths(sometimes(options.key_lengths()))
      .query_offsets(sometimes(options.query_offsets()))
      .cu_seqlens(sometimes(options.cu_seqlens()))
      .cu_seqlens_k(sometimes(options.cu_seqlens_k()));
  return problem;
}

void check_problem(Random& random, const Problem& problem) {
  const auto one_by_one = problem.query_lengths.empty()
      ? &Problem::attend
      : &Problem::attend_one_by_one;
  const auto exact =
      compute(problem, torch::kDouble, Kernel::kReference, one_by_one);
  const auto reference =
      compute(problem, problem.dtype, Kernel::kReference, one_by_one);
  const auto m = magnitudes_of(problem);
  const auto moved = on_device(random, problem);
  for (const auto kernel : {Kernel::kAuto, Kernel::kReference}) {
    const auto found = compute(moved, problem.dtype, kernel);
    for (size_t i = 0; i < exact.size(); ++i) {
      check_close(
          c10::str(name_of(i), " by ", kernel),
          found[i].cpu(),
          reference[i],
          exact[i],
          bound_of(problem, m, i));
    }
  }
}

/// Returns the fault of a case, or nothing.
std::string fault_of(uint64_t number, Problem (*make)(Random&)) {
  torch::manual_seed(number);
  Random random(number);
  const auto problem = make(random);
  choose(random.one_of(
      {at::SDPBackend::flash_attention,
       at::SDPBackend::flash_attention,
       at::SDPBackend::efficient_attention,
       at::SDPBackend::math}));
  std::string fault;
  try {
    check_problem(random, problem);
  } catch (const c10::Error& error) {
    fault = error.what_without_backtrace();
  } catch (const Failure& failure) {
    fault = failure.what();
  }
  choose(at::SDPBackend::flash_attention);
  return fault.empty() ? fault : fault + " for " + problem.text();
}

void check_cases(uint64_t first, uint64_t count, Problem (*make)(Random&)) {
  for (auto number = first; number < first + count; ++number) {
    const auto fault = fault_of(number, make);
    CAPTURE(number, fault);
    CHECK(fault.empty());
  }
}

} // namespace

TEST_CASE("Drawn attentions are the same on the device") {
  check_cases(0, 300, &make_problem);
}

TEST_CASE("Drawn packed sequences are the same on the device") {
  check_cases(0, 100, &make_packed_problem);
}

TEST_CASE("Attention refuses tensors of the CPU among those of the device") {
  const auto x = torch::randn({2, 3, 4, 8});
  const auto here = x.to(device());
  const auto attend = [](const torch::Tensor& query,
                         const torch::Tensor& key,
                         const Options& options) {
    functional::scaled_dot_product_attention(query, key, key, options);
  };
  CHECK_NOTHROW(attend(here, here, Options()));
  CHECK_THROWS_AS(attend(here, x, Options()), c10::Error);
  CHECK_THROWS_AS(attend(x, here, Options()), c10::Error);
  CHECK_THROWS_AS(
      attend(here, here, Options().mask(torch::zeros({4, 4}, torch::kBool))),
      c10::Error);
  CHECK_THROWS_AS(
      attend(here, here, Options().bias(torch::zeros({4, 4}))), c10::Error);
  CHECK_THROWS_AS(
      attend(
          x,
          x,
          Options().mask(torch::zeros({4, 4}, torch::kBool).to(device()))),
      c10::Error);
}

} // namespace device_functional_test
