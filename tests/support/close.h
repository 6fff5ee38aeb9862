#pragma once

#include <support/test.h>

#include <optional>
#include <string>
#include <vector>

/// Matchers of tensors. All require equal shape and dtype; tensors of another
/// device are compared on the CPU.
namespace torch_attention::testing {

/// Allows `|actual - expected| <= atol + rtol |expected|`. A value that is not
/// set is PyTorch's for the dtype: 1.3e-6 / 1e-5 for float32, 1e-7 / 1e-7 for
/// double, 1e-3 / 1e-3 for float16, 1.6e-2 / 1e-3 for bfloat16, 0 / 0 for
/// integers.
struct Tolerance {
  Tolerance() = default;
  Tolerance(double rtol, double atol) : rtol_(rtol), atol_(atol) {}

  TORCH_ARG(std::optional<double>, rtol) = std::nullopt;
  TORCH_ARG(std::optional<double>, atol) = std::nullopt;

  /// whether NaN equals NaN. Default: false
  TORCH_ARG(bool, equal_nan) = false;
};

/// Matches close tensors. On failure it says which element is worst.
class IsCloseTo : public Matcher<torch::Tensor> {
 public:
  explicit IsCloseTo(torch::Tensor expected, Tolerance tolerance = {});

  bool match(const torch::Tensor& actual) const override;
  std::string describe() const override;

 private:
  torch::Tensor expected_;
  Tolerance tolerance_;
  mutable std::string difference_;
};

/// Checks that there are as many tensors as expected, each of them close.
void check_all_close(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected,
    const Tolerance& tolerance = {});

/// Matches the same bits: 0 is not -0, and NaN is equal to itself.
class IsEqualTo : public Matcher<torch::Tensor> {
 public:
  explicit IsEqualTo(torch::Tensor expected);

  bool match(const torch::Tensor& actual) const override;
  std::string describe() const override;

 private:
  torch::Tensor expected_;
  mutable std::string difference_;
};

/// Matches values that Python prints as `expected`: equal to `decimals`
/// decimals, give or take the last bits of float32 (which may decide how the
/// last printed digit is rounded).
IsCloseTo IsPrinted(const torch::Tensor& expected, int decimals = 4);

class HasShape : public Matcher<torch::Tensor> {
 public:
  explicit HasShape(torch::IntArrayRef shape) : shape_(shape.vec()) {}

  bool match(const torch::Tensor& actual) const override {
    return actual.sizes() == torch::IntArrayRef(shape_);
  }

  std::string describe() const override {
    return c10::str("has the shape ", torch::IntArrayRef(shape_));
  }

 private:
  std::vector<int64_t> shape_;
};

} // namespace torch_attention::testing
