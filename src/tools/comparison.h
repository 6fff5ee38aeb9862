#pragma once

#include <torch/types.h>

#include <string>

namespace torch_attention::tools {

/// How far a result may be from the expected one: the largest absolute
/// difference is at most `atol + rtol * max|expected|`.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

/// What PyTorch's own tests allow for a dtype.
Tolerance tolerance_of(torch::ScalarType dtype);

/// How far a result is from the expected one.
struct Difference {
  /// max|actual - expected|
  double absolute = 0;
  /// The same divided by max|expected|; 0 if both are 0.
  double relative = 0;
  /// The absolute difference as a part of what the tolerance allows.
  double of_tolerance = 0;

  /// False for NaN.
  bool within_tolerance() const {
    return of_tolerance <= 1;
  }
};

/// Compares in double. Infinite for shapes that differ, NaN where there is NaN.
Difference compare(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    const Tolerance& tolerance);

} // namespace torch_attention::tools
