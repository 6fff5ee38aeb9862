#pragma once

#include <distributed/group.h>
#include <support/test.h>
#include <torch_attention/distributed/tensor_parallel.h>

#include <algorithm>
#include <string>

namespace torch_attention::testing {

/// Matches what one process computes: to 1e-6 (float32) or 1e-12 (float64) of
/// the largest number, `factor` times.
class IsAsOfOne : public Matcher<torch::Tensor> {
 public:
  explicit IsAsOfOne(const torch::Tensor& expected, double factor = 1)
      : expected_(expected.detach()),
        allowed_(
            factor * (expected.scalar_type() == torch::kDouble ? 1e-12 : 1e-6) *
            (expected.numel() == 0
                 ? 1.0
                 : std::max(1.0, expected.abs().max().item<double>()))) {}

  bool match(const torch::Tensor& actual) const override {
    if (!actual.defined() || actual.sizes() != expected_.sizes() ||
        actual.scalar_type() != expected_.scalar_type()) {
      difference_ = "other shape or dtype";
      return false;
    }
    if (actual.numel() == 0) {
      return true;
    }
    const auto worst = (actual.detach() - expected_).abs().max().item<double>();
    difference_ = c10::str("differs by ", worst, ", allowed are ", allowed_);
    return worst <= allowed_;
  }

  std::string describe() const override {
    return c10::str(
        "is what one process computes, of shape ",
        expected_.sizes(),
        ": ",
        difference_);
  }

 private:
  torch::Tensor expected_;
  double allowed_;
  mutable std::string difference_;
};

/// Compares the gradients of a module's parameters with the whole's.
inline void check_gradients(
    const torch::nn::Module& module,
    const torch::nn::Module& whole) {
  const auto shards = distributed::weight_shards(module);
  const auto expected = whole.named_parameters();
  for (const auto& parameter : module.named_parameters()) {
    INFO(parameter.key());
    const auto& gradient = expected[parameter.key()].grad();
    REQUIRE(gradient.defined() == parameter.value().grad().defined());
    if (gradient.defined()) {
      CHECK_THAT(
          parameter.value().grad(),
          IsAsOfOne(own_part(gradient, parameter.key(), shards)));
    }
  }
}

} // namespace torch_attention::testing
