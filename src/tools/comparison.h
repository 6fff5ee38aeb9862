#pragma once

#include <torch/types.h>

#include <string>

namespace torch_attention::tools {

/// How far a result may be from the expected one: the largest absolute
/// difference is at most `atol + rtol * scale`.
struct Tolerance {
  double rtol = 0;
  double atol = 0;

  double allowed(double scale) const {
    return atol + rtol * scale;
  }
};

/// Returns what PyTorch's own tests allow for a dtype. `same_operations`: both
/// results come from the same operations, and are equal but for another
/// processor.
Tolerance tolerance_of(torch::ScalarType dtype, bool same_operations);

/// max|x|; 0 if empty.
double largest_of(const torch::Tensor& x);

/// How far a result is from the expected one.
struct Difference {
  /// max|actual - expected|
  double absolute = 0;
  /// The same divided by the scale.
  double relative = 0;
  /// The same divided by what is allowed; infinite if it is not finite.
  double of_allowed = 0;

  bool is_allowed() const {
    return of_allowed <= 1;
  }
};

/// Compares in double. Shapes that differ are infinitely far apart.
/// `scale` is the size of numbers of which the tensors are sums.
Difference compare(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    double scale,
    double allowed);

} // namespace torch_attention::tools
