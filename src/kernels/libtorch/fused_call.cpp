#include <kernels/libtorch/fused_call.h>

#include <kernels/libtorch/fused_arguments.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>

namespace torch_attention::kernels {

namespace {

const PrivateOperator& flash_forward() {
  static const PrivateOperator op("aten::_flash_attention_forward");
  return op;
}

const PrivateOperator& flash_backward() {
  static const PrivateOperator op("aten::_flash_attention_backward");
  return op;
}

const PrivateOperator& efficient_forward() {
  static const PrivateOperator op("aten::_efficient_attention_forward");
  return op;
}

const PrivateOperator& efficient_backward() {
  static const PrivateOperator op("aten::_efficient_attention_backward");
  return op;
}

} // namespace

bool has_fused_kernel(FusedKernel kernel, const torch::Tensor& x) {
  return kernel == FusedKernel::kFlash ? flash_forward().has_kernel_for(x)
                                       : efficient_forward().has_kernel_for(x);
}

FusedResults fused_forward(const FusedCall& call, bool with_logsumexp) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool flash = call.kernel == FusedKernel::kFlash;
  const auto results = flash
      ? flash_forward()(flash_arguments(call))
      : efficient_forward()(efficient_arguments(call, with_logsumexp));
  const auto output = results[0].toTensor();
  return {
      flash && call.packed ? output.unsqueeze(0) : output,
      results[1].toTensor(),
      results[2].toTensor(),
      results[3].toTensor()};
}

std::vector<torch::Tensor> fused_backward(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto grad = grad_output.contiguous();
  const bool flash = call.kernel == FusedKernel::kFlash;
  const auto found = flash
      ? flash_backward()(flash_backward_arguments(call, results, grad))
      : efficient_backward()(efficient_backward_arguments(call, results, grad));
  std::vector<torch::Tensor> gradients;
  for (size_t i = 0; i < 3; ++i) {
    const auto gradient = found[i].toTensor();
    gradients.push_back(
        flash && call.packed ? gradient.unsqueeze(0) : gradient);
  }
  return gradients;
}

torch::Tensor for_each_row(const FusedCall& call, const torch::Tensor& x) {
  if (!call.packed) {
    return x.narrow(2, 0, call.query.size(1)).transpose(1, 2).unsqueeze(-1);
  }
  if (x.dim() == 2) {
    return x.transpose(0, 1).unsqueeze(0).unsqueeze(-1);
  }
  // (B, H, longest): finds the sequence of each token, and its place there.
  const auto& starts = call.packed->queries;
  const auto token = at::arange(call.query.size(1), starts.options());
  const auto sequence = at::searchsorted(
      starts.slice(0, 1), token, /*out_int32=*/false, /*right=*/true);
  const auto place = token - starts.index({sequence});
  return x.index({sequence, torch::indexing::Slice(), place})
      .unsqueeze(0)
      .unsqueeze(-1);
}

} // namespace torch_attention::kernels
