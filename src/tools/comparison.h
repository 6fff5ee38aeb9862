#pragma once

#include <torch/types.h>

#include <string>

namespace torch_attention::tools {

/// The limit of a result's distance from the expected one: the largest absolute
/// difference is at most `atol + rtol * scale`.
struct Tolerance {
  double rtol = 0;
  double atol = 0;

  double allowed(double scale) const {
    return atol + rtol * scale;
  }
};

/// Returns the tolerance of PyTorch's own tests for a dtype. With
/// `same_operations`, both results come from the same operations, and differ
/// only between processors.
Tolerance tolerance_of(torch::ScalarType dtype, bool same_operations);

/// Returns max|x|; 0 if x is empty.
double largest_of(const torch::Tensor& x);

/// The distance of a result from the expected one.
struct Difference {
  /// max|actual - expected|
  double absolute = 0;
  /// `absolute` divided by the scale.
  double relative = 0;
  /// `absolute` divided by the allowed difference; infinite if `absolute` is
  /// not finite.
  double of_allowed = 0;

  bool is_allowed() const {
    return of_allowed <= 1;
  }
};

/// Compares in float64. Tensors of different shapes are infinitely far apart.
/// `scale` is the magnitude of the summands of the tensors.
Difference compare(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    double scale,
    double allowed);

} // namespace torch_attention::tools
