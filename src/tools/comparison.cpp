#include <tools/comparison.h>

#include <limits>

namespace torch_attention::tools {

Tolerance tolerance_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return {1e-7, 1e-7};
    case torch::kBFloat16:
      return {1.6e-2, 1e-3};
    case torch::kHalf:
      return {1e-3, 1e-3};
    default:
      return {1.3e-6, 1e-5};
  }
}

Difference compare(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    const Tolerance& tolerance) {
  const auto infinity = std::numeric_limits<double>::infinity();
  if (!actual.defined() || actual.sizes() != expected.sizes()) {
    return {infinity, infinity, infinity};
  }
  if (expected.numel() == 0) {
    return {};
  }
  const auto in_double = [](const torch::Tensor& x) {
    return x.detach().to(torch::kCPU, torch::kDouble);
  };
  const auto e = in_double(expected);
  Difference difference;
  difference.absolute = (in_double(actual) - e).abs().max().item<double>();
  const auto largest = e.abs().max().item<double>();
  difference.relative =
      difference.absolute == 0 ? 0 : difference.absolute / largest;
  difference.of_tolerance =
      difference.absolute / (tolerance.atol + tolerance.rtol * largest);
  return difference;
}

} // namespace torch_attention::tools
