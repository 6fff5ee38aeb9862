#pragma once

#include <random/bounds.h>
#include <random/problem.h>

#include <array>
#include <cstddef>
#include <string>

namespace torch_attention::random {

/// The sizes of the numbers of which the results are sums.
struct Magnitudes {
  double scores = 0;
  double value = 0;
  double grad_weight = 0;
  double grad_score = 0;
  double scale = 1;
  /// the keys over which outputs are summed
  double keys = 0;
  double query = 0;
  double key = 0;
  /// the heads that share keys
  double group = 1;
  /// how many elements of query, key and value share one place in memory
  std::array<double, 3> copies{};
};

Magnitudes magnitudes_of(const Problem& problem);

/// Returns the bound of the result of `compute` with this number.
Bound bound_of(const Problem& problem, const Magnitudes& m, size_t result);

/// Returns its name, for messages.
std::string name_of(size_t result);

/// Compares what the kernels compute for `problem` with `attend` of a problem
/// that has the same results, by the reference, in its dtype and in float64.
void check_kernels(
    const Problem& problem,
    const Problem& expected,
    Attend attend);

} // namespace torch_attention::random
