#pragma once

#include <torch_attention/nn/modules/head_norm.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::detail {

/// `module.forward(x)`; with `Kernel::kReference` by LibTorch's operators.
torch::Tensor normalised(
    HeadNormImpl& module,
    const torch::Tensor& x,
    Kernel kernel);

} // namespace torch_attention::detail
