#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>

namespace torch_attention::functional {

/// Computes a linear layer like the projections of our modules, for the other
/// layers of a model: x (..., in), weight (out, in) and bias (out), or
/// undefined
/// -> (..., out), x W^T + bias, equal to `torch::linear` within rounding.
/// Differentiable. docs/kernels.md lists what computes it; with
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
