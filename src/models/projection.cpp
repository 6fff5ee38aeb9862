#include <torch_attention/models/projection.h>

#include <large_pages.h>

#include <torch_attention/nn/functional/linear.h>

#include <ATen/ops/empty.h>

namespace torch_attention::models {

ProjectionImpl::ProjectionImpl(
    int64_t in,
    int64_t out,
    bool has_bias,
    torch::Dtype dtype)
    : weight(register_parameter(
          "weight",
          empty_on_large_pages({out, in}, dtype))) {
  if (has_bias) {
    bias = register_parameter("bias", torch::empty(out, dtype));
  }
}

torch::Tensor ProjectionImpl::forward(const torch::Tensor& x) {
  return functional::linear(x, weight, bias);
}

} // namespace torch_attention::models
