#pragma once

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

namespace torch_attention::detail {

/// Returns the output (B, T, d_out) by the kernel that computes a whole small
/// module; undefined if it does not take this call.
/// Throws c10::Error if x does not fit a module that it takes.
torch::Tensor small_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

} // namespace torch_attention::detail
