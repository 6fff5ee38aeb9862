#pragma once

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::kernels {

/// Applies the rotary embedding to the first 2 `pairs` numbers of x (..., T,
/// D). `cos` and `sin` (..., T, pairs) of the angles broadcast to the pairs of
/// x. `by_halves` pairs number i with i + pairs, else with its neighbour. Half
/// precision is rotated in float32 and rounded once. On the CPU our kernel
/// takes heads (B, H, T, D) in one pass, with the bits of the operators, which
/// `Kernel::kReference` takes. Returns a contiguous tensor.
torch::Tensor rotate(
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin,
    bool by_halves,
    Kernel kernel);

} // namespace torch_attention::kernels
