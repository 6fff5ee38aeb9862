#pragma once

#include <torch_attention/nn/modules/head_norm.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::detail {

/// Computes `module.forward(x)` by `kernel`; `Kernel::kReference` uses
/// LibTorch's operators.
torch::Tensor normalised(
    HeadNormImpl& module,
    const torch::Tensor& x,
    Kernel kernel);

} // namespace torch_attention::detail
