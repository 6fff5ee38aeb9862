#pragma once

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

namespace torch_attention::detail {

/// Computes the output (B, T, d_out) by the kernel for small modules, from
/// projections to output. Returns an undefined tensor if it does not support
/// the call. Throws c10::Error if it supports the module, but x does not fit.
torch::Tensor small_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

} // namespace torch_attention::detail
