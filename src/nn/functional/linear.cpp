#include <torch_attention/nn/functional/linear.h>

#include <check.h>
#include <kernels/linear.h>

namespace torch_attention::functional {

torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  TORCH_ATTENTION_CHECK(
      x.defined() && weight.defined(),
      "linear: {} is undefined",
      x.defined() ? "weight" : "x");
  TORCH_ATTENTION_CHECK(
      weight.dim() == 2 && x.dim() > 0,
      "linear: expected x of shape (..., in) and weight of shape (out, "
      "in), but got {} and {}",
      x.sizes(),
      weight.sizes());
  return kernels::linear(x, weight, bias, Kernel::kAuto);
}

} // namespace torch_attention::functional
