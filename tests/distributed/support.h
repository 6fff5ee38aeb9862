#pragma once

#include <distributed/group.h>
#include <support/test.h>
#include <torch_attention/distributed/tensor_parallel.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <string>

namespace torch_attention::testing {

/// Returns the largest |x|, 0 for no elements.
inline double largest(const torch::Tensor& x) {
  return x.numel() == 0 ? 0.0 : x.detach().abs().max().item<double>();
}

/// Matches what one process computes: to 1e-6 (float32) or 1e-12 (float64) of
/// the largest number, and twice the error of the one process itself where that
/// is known: the others round as much.
class IsAsOfOne : public Matcher<torch::Tensor> {
 public:
  explicit IsAsOfOne(const torch::Tensor& expected, double own_error = 0)
      : expected_(expected.detach()),
        allowed_(
            (expected.scalar_type() == torch::kDouble ? 1e-12 : 1e-6) *
                std::max(1.0, largest(expected)) +
            2 * own_error) {}

  bool match(const torch::Tensor& actual) const override {
    if (!actual.defined() || actual.sizes() != expected_.sizes() ||
        actual.scalar_type() != expected_.scalar_type()) {
      difference_ = "other shape or dtype";
      return false;
    }
    if (actual.numel() == 0) {
      return true;
    }
    const auto worst = largest(actual - expected_);
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

/// Lets operators compute in bfloat16 while it lives.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

/// Compares with float32 what was computed with 8 bits of mantissa.
inline void check_close_in_half(
    const torch::Tensor& actual,
    const torch::Tensor& expected) {
  CHECK(
      largest(actual.to(torch::kFloat) - expected) <
      3e-2 * std::max(1.0, largest(expected)));
}

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
