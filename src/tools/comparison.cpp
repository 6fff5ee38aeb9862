#include <tools/comparison.h>

#include <cmath>
#include <limits>

namespace torch_attention::tools {

Tolerance tolerance_of(torch::ScalarType dtype, bool same_operations) {
  switch (dtype) {
    case torch::kDouble:
      return {1e-7, 1e-7};
    case torch::kBFloat16:
      return {1.6e-2, 1e-3};
    case torch::kHalf:
      return {1e-3, 1e-3};
    default:
      return same_operations ? Tolerance{1e-6, 1e-6} : Tolerance{1.3e-6, 1e-5};
  }
}

double largest_of(const torch::Tensor& x) {
  return x.numel() == 0
      ? 0
      : x.detach().abs().max().to(torch::kDouble).item<double>();
}

Difference compare(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    double scale,
    double allowed) {
  const auto infinity = std::numeric_limits<double>::infinity();
  if (!actual.defined() || actual.sizes() != expected.sizes()) {
    return {infinity, infinity, infinity};
  }
  const auto in_double = [](const torch::Tensor& x) {
    return x.detach().to(torch::kCPU, torch::kDouble);
  };
  Difference difference;
  difference.absolute = largest_of(in_double(actual) - in_double(expected));
  difference.relative =
      difference.absolute == 0 ? 0 : difference.absolute / scale;
  // NaN would pass as no larger than the allowed difference, and infinity may
  // be divided by infinity.
  difference.of_allowed = std::isfinite(difference.absolute)
      ? difference.absolute / allowed
      : infinity;
  return difference;
}

} // namespace torch_attention::tools
