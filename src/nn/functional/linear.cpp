#include <torch_attention/nn/functional/linear.h>

#include <kernels/linear.h>

#include <c10/util/Exception.h>

namespace torch_attention::functional {

torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  TORCH_CHECK(
      x.defined() && weight.defined(),
      "linear: ",
      x.defined() ? "weight" : "x",
      " is undefined");
  TORCH_CHECK(
      weight.dim() == 2 && x.dim() > 0,
      "linear: expected x of shape (..., in) and weight of shape (out, in), ",
      "but got ",
      x.sizes(),
      " and ",
      weight.sizes());
  return kernels::linear(x, weight, bias, Kernel::kAuto);
}

} // namespace torch_attention::functional
