#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>

namespace torch_attention::functional {

/// The linear layer of our modules' projections, for the others of a model:
/// x (..., in), weight (out, in) and bias (out), or undefined -> (..., out),
/// x W^T + bias as `torch::linear` gives it within rounding, with gradients.
/// docs/kernels.md says what computes it; with
/// `set_default_kernel(Kernel::kReference)` it is `torch::linear` itself.
///
/// Throws c10::Error if shapes or dtypes do not fit.
///
/// Example:
/// ```
/// namespace F = torch_attention::functional;
/// auto hidden = torch::gelu(F::linear(x, up->weight, up->bias));
/// ```
TORCH_ATTENTION_API torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias = {});

} // namespace torch_attention::functional
