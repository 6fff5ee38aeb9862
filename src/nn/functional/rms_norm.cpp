#include <torch_attention/nn/functional/rms_norm.h>

#include <check.h>
#include <kernels/rms_norm.h>
#include <nn/checks.h>

#include <c10/util/Exception.h>

namespace torch_attention::functional {

namespace {

constexpr const char* kRmsNorm = "rms_norm";

} // namespace

torch::Tensor rms_norm(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    double eps,
    bool unit_offset) {
  TORCH_CHECK(x.defined(), "rms_norm: x is undefined");
  checks::check_dense(kRmsNorm, "x", x);
  checks::check_floating(kRmsNorm, "", "x", x);
  TORCH_CHECK(
      x.dim() > 0, "rms_norm: expected x of shape (..., C), but got a scalar");
  checks::check_eps(kRmsNorm, eps);
  TORCH_CHECK(
      weight.defined() || !unit_offset,
      "rms_norm: expected a weight beside unit_offset, but it is undefined");
  if (weight.defined()) {
    checks::check_dense(kRmsNorm, "weight", weight);
    checks::check_floating(kRmsNorm, "a ", "weight", weight);
    TORCH_ATTENTION_CHECK(
        weight.dim() == 1 && weight.size(0) == x.size(-1),
        "rms_norm: expected a weight of shape ({}) for x {}, but got {}",
        x.size(-1),
        x.sizes(),
        weight.sizes());
    TORCH_ATTENTION_CHECK(
        weight.device() == x.device(),
        "rms_norm: expected a weight on {}, where x is, but got {}",
        x.device(),
        weight.device());
  }
  checks::check_can_be_saved(kRmsNorm, {&x, &weight});
  return kernels::rms_norm(
      x, {weight, torch::Tensor(), eps, unit_offset}, Kernel::kAuto);
}

} // namespace torch_attention::functional
