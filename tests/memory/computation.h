#pragma once

#include <support/failing_allocations.h>
#include <support/test.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::testing {

using Tensors = std::vector<torch::Tensor>;

/// Checks that allocations failed, and that each did so without a fault, but
/// for those of LibTorch that are `known`.
inline void check_no_faults(
    FailedAllocations result,
    const std::vector<std::string>& known = {}) {
  remove_faults_of_libtorch(result, known);
  INFO(result.text());
  CHECK(result.faults.empty());
  CHECK(result.count > 2);
}

/// Returns the first tensor that is not equal, or nothing.
inline std::string difference(const Tensors& x, const Tensors& y) {
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    if (!x[i].equal(y[i])) {
      return c10::str("tensor ", i, " differs");
    }
  }
  return x.size() == y.size() ? "" : "another number of tensors";
}

/// Returns parameters and buffers.
inline Tensors state_of(const torch::nn::Module& module) {
  auto tensors = module.parameters();
  for (const auto& buffer : module.buffers()) {
    tensors.push_back(buffer);
  }
  return tensors;
}

inline Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& x : tensors) {
    copies.push_back(x.detach().clone());
  }
  return copies;
}

/// Checks that `compute` throws or returns the same each time, and changes
/// nothing of `module`. Where gradients are recorded no failure is for good,
/// since LibTorch then ends the process.
inline void check_computation(
    const torch::nn::Module& module,
    const std::function<Tensors()>& compute,
    Failures failures = {}) {
  const auto before = copies_of(state_of(module));
  const auto expected = compute();
  const auto make = [&] {
    const auto found = std::make_shared<Tensors>();
    Attempt attempt;
    attempt.run = [&compute, found] { *found = compute(); };
    attempt.changed = [&] { return difference(before, state_of(module)); };
    attempt.wrong = [&expected, found] { return difference(expected, *found); };
    return attempt;
  };
  failures.for_good = failures.for_good && !torch::GradMode::is_enabled();
  check_no_faults(fail_each_allocation(make, failures), faults_of_graphs());
}

/// Checks that `compute` throws or returns the same each time.
inline void check_computation(
    const std::function<Tensors()>& compute,
    const Failures& failures = {}) {
  check_computation(torch::nn::Module(), compute, failures);
}

} // namespace torch_attention::testing
