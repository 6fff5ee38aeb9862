#pragma once

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::kernels {

/// The root mean square norm over the last dimension of x, computed in float32
/// for half precision and rounded once.
struct RmsNorm {
  /// (D), or (H, D) for x (..., H, D), or undefined.
  torch::Tensor weight;
  /// Has the weight's shape, or is undefined.
  torch::Tensor bias;
  double eps = 0;
  /// Adds 1 to the weights.
  bool unit_offset = false;
};

/// Returns the norm of x (..., D) in its shape and dtype. Without a graph on
/// the CPU our kernel computes it in one pass, if weight and bias have its
/// dtype; else, and with `Kernel::kReference`, operators do.
torch::Tensor rms_norm(
    const torch::Tensor& x,
    const RmsNorm& norm,
    Kernel kernel);

/// Returns x (..., D) / sqrt(mean_square + eps), for the mean square (..., 1),
/// times weight plus bias, by operators.
torch::Tensor normalised_by(
    const torch::Tensor& x,
    const torch::Tensor& mean_square,
    const RmsNorm& norm);

/// Applies weight and bias of `norm` to what is normalised already.
torch::Tensor weighted(const torch::Tensor& normal, const RmsNorm& norm);

} // namespace torch_attention::kernels
