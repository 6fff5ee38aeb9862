#pragma once

#include <random/random.h>

#include <torch/types.h>

#include <cmath>
#include <limits>
#include <string>

namespace torch_attention::random {

/// Returns the distance from 1 to the next number of the dtype.
inline double epsilon(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return 0x1p-52;
    case torch::kFloat:
      return 0x1p-23;
    case torch::kHalf:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

/// Returns the dtype in which sums are formed.
inline torch::ScalarType sum_dtype(torch::ScalarType dtype) {
  return dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
}

/// Returns the largest |x|, 0 for no elements.
inline double largest(const torch::Tensor& x) {
  return x.numel() == 0
      ? 0.0
      : x.detach().to(torch::kDouble).abs().max().item<double>();
}

/// Returns the largest difference; infinity where one is NaN or infinite.
inline double distance(const torch::Tensor& x, const torch::Tensor& exact) {
  if (x.sizes() != exact.sizes()) {
    fail("shape ", x.sizes(), " instead of ", exact.sizes());
  }
  const auto result = largest(x.detach().to(torch::kDouble) - exact.detach());
  return std::isfinite(result) ? result
                               : std::numeric_limits<double>::infinity();
}

/// A bound of the distance between results of a dtype and those of float64.
struct Bound {
  torch::ScalarType dtype = torch::kFloat;
  /// the size of the numbers that are summed
  double magnitude = 1;
  /// the factor by which errors of scores grow: their size
  double condition = 1;
  /// how many numbers are summed
  double terms = 1;

  double rounding() const {
    const auto of_sums = 32 * condition + 8 * std::sqrt(terms);
    return magnitude *
        (2 * epsilon(dtype) + of_sums * epsilon(sum_dtype(dtype)));
  }
};

/// Checks that `fused` is not much further from `exact` than `reference` is.
/// The error of the reference is not limited.
inline void check_close(
    const std::string& what,
    const torch::Tensor& fused,
    const torch::Tensor& reference,
    const torch::Tensor& exact,
    const Bound& bound) {
  const auto error = distance(fused, exact);
  const auto reference_error = distance(reference, exact);
  const auto allowed = 4 * reference_error + bound.rounding();
  if (!(error <= allowed)) {
    fail(
        what,
        ": off by ",
        error,
        ", reference by ",
        reference_error,
        ", allowed ",
        allowed);
  }
}

/// Checks that float64 results that are computed in two ways are the same.
inline void check_same(
    const std::string& what,
    const torch::Tensor& x,
    const torch::Tensor& expected,
    double magnitude = 1,
    double tolerance = 1e-12) {
  const auto error = distance(x, expected);
  const auto allowed = tolerance * (magnitude + largest(expected));
  if (!(error <= allowed)) {
    fail(what, ": off by ", error, ", allowed ", allowed);
  }
}

} // namespace torch_attention::random
