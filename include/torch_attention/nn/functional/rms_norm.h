#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>

namespace torch_attention::functional {

/// Computes a root mean square norm (Zhang and Sennrich 2019, equation 4) like
/// the norms of heads in our modules, for the other norms of a model:
/// x (..., C) -> x / sqrt(mean(x^2) + eps) * weight, of the same shape and
/// dtype. An undefined `weight` (C) means 1. `unit_offset` adds 1 to it, as in
/// Gemma. Half precision is computed in float32 and rounded once
/// (`transformers` rounds Llama's norm before it multiplies by the weight).
/// Differentiable in x and `weight`. On the CPU it is one pass over x if no
/// gradient is recorded and `weight` has the dtype of x; otherwise, and with
/// `set_default_kernel(Kernel::kReference)`, LibTorch's operators compute it,
/// with differences in the last bits.
///
/// Throws c10::Error if shapes, dtypes or eps do not fit.
///
/// Example:
/// ```
/// namespace F = torch_attention::functional;
/// auto normed = F::rms_norm(x, norm->weight, /*eps=*/1e-6);
/// ```
TORCH_ATTENTION_API torch::Tensor rms_norm(
    const torch::Tensor& x,
    const torch::Tensor& weight = {},
    double eps = 1e-6,
    bool unit_offset = false);

} // namespace torch_attention::functional
