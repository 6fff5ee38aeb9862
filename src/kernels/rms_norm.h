#pragma once

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::kernels {

/// The root mean square norm over the last dimension of x, computed in float32
/// for half precision and rounded once.
struct RmsNorm {
  /// (D), (H, D) of x (..., H, D), or undefined.
  torch::Tensor weight;
  /// Has the weight's shape, or is undefined.
  torch::Tensor bias;
  double eps = 0;
  /// Adds 1 to the weights.
  bool unit_offset = false;
};

/// x (..., D) -> its shape and dtype. Without a graph on the CPU by a kernel of
/// ours, in one pass, if weight and bias have its dtype; else, and with
/// `Kernel::kReference`, by operators.
torch::Tensor rms_norm(
    const torch::Tensor& x,
    const RmsNorm& norm,
    Kernel kernel);

/// x (..., D), divided by the root of its mean square (..., 1) and eps, times
/// weight plus bias, by operators.
torch::Tensor normalised_by(
    const torch::Tensor& x,
    const torch::Tensor& mean_square,
    const RmsNorm& norm);

/// Weight and bias of `norm` on what is normalised already.
torch::Tensor weighted(const torch::Tensor& normal, const RmsNorm& norm);

} // namespace torch_attention::kernels
