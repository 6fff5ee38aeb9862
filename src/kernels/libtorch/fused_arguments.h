#pragma once

#include <kernels/libtorch/fused_call.h>
#include <kernels/libtorch/private_operator.h>

/// The arguments of LibTorch's fused kernels, by name.
namespace torch_attention::kernels {

/// aten::_flash_attention_forward
NamedArguments flash_arguments(const FusedCall& call);

/// aten::_flash_attention_backward
NamedArguments flash_backward_arguments(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output);

/// aten::_efficient_attention_forward
NamedArguments efficient_arguments(const FusedCall& call, bool with_logsumexp);

/// aten::_efficient_attention_backward
NamedArguments efficient_backward_arguments(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output);

} // namespace torch_attention::kernels
