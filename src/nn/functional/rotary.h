#pragma once

#include <torch/types.h>

#include <torch_attention/nn/options/rotary.h>

namespace torch_attention::functional::detail {

/// Computes `rotary_embedding`, or with `backwards` its gradient, the inverse
/// rotation.
torch::Tensor apply_rotary(
    const torch::Tensor& x,
    const torch::Tensor& positions,
    const RotaryOptions& options,
    bool backwards);

} // namespace torch_attention::functional::detail
