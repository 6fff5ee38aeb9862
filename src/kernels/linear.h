#pragma once

#include <torch/types.h>

namespace torch_attention::kernels {

/// x (..., in), weight (out, in), bias (out) or undefined -> x W^T + b
/// (..., out). `torch::linear`, or `onednn_linear` where that is faster.
torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

/// Whether weight (out, in) and bias (out), or undefined, are of a layer that
/// takes `in` numbers.
bool is_linear_layer(
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    int64_t in);

/// Whether this LibTorch can compute it by oneDNN: float32 on the CPU.
bool has_onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

/// The same by LibTorch's copy of oneDNN, forward and backward. LibTorch itself
/// multiplies float32 matrices by MKL, which takes twice the time on the
/// processors of other makers than its own.
torch::Tensor onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

} // namespace torch_attention::kernels
