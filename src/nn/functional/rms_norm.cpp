#include <torch_attention/nn/functional/rms_norm.h>

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
  TORCH_CHECK(x.defined(), kRmsNorm, ": x is undefined");
  checks::check_dense(kRmsNorm, "x", x);
  checks::check_floating(kRmsNorm, "", "x", x);
  TORCH_CHECK(
      x.dim() > 0,
      kRmsNorm,
      ": expected x of shape (..., C), but got a scalar");
  checks::check_eps(kRmsNorm, eps);
  TORCH_CHECK(
      weight.defined() || !unit_offset,
      kRmsNorm,
      ": expected a weight beside unit_offset, but it is undefined");
  if (weight.defined()) {
    checks::check_dense(kRmsNorm, "weight", weight);
    checks::check_floating(kRmsNorm, "a ", "weight", weight);
    TORCH_CHECK(
        weight.dim() == 1 && weight.size(0) == x.size(-1),
        kRmsNorm,
        ": expected a weight of shape (",
        x.size(-1),
        ") for x ",
        x.sizes(),
        ", but got ",
        weight.sizes());
    TORCH_CHECK(
        weight.device() == x.device(),
        kRmsNorm,
        ": expected a weight on ",
        x.device(),
        ", where x is, but got ",
        weight.device());
  }
  checks::check_can_be_saved(kRmsNorm, {&x, &weight});
  return kernels::rms_norm(
      x, {weight, torch::Tensor(), eps, unit_offset}, Kernel::kAuto);
}

} // namespace torch_attention::functional
