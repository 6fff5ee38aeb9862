#pragma once

#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

#include <vector>

namespace torch_attention::kernels {

/// Returns x W^T + b (..., out) for x (..., in), weight (out, in) and bias
/// (out), or undefined, by what is fastest:
///
///   `same_bits`, no graph  our kernel, for any number of rows
///   few rows, no graph     our kernel, at the speed of reading the weight
///   float32                `onednn_linear` on processors that are not Intel's
///   half precision         in float32, rounded once, on processors that do not
///                          multiply this dtype
///   else                   `torch::linear`
torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

/// A layer's weight (out, in) and bias (out), or undefined.
struct LinearLayer {
  torch::Tensor weight;
  torch::Tensor bias;
};

/// Returns `linear` of x for each of the layers, computed in their order; few
/// rows by all layers at once. `Kernel::kReference` uses
/// `torch.nn.functional.linear`.
std::vector<torch::Tensor> linear_each(
    const torch::Tensor& x,
    const std::vector<LinearLayer>& layers,
    Kernel kernel);

/// Returns x (..., in) times the weight (out, in), with the bias (out) if it is
/// defined: (..., out). With `Kernel::kReference` it is Python's
/// `torch.nn.functional.linear`. (LibTorch's C++ `Linear::forward` multiplies
/// and then adds the bias, which rounds differently in bfloat16.)
torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    Kernel kernel);

/// Returns whether weight (out, in) and bias (out), or undefined, belong to a
/// layer that takes `in` numbers.
bool is_linear_layer(
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    int64_t in);

/// Returns whether this LibTorch has oneDNN for `linear`: float32 on the CPU.
bool has_onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

/// Computes `linear` by LibTorch's copy of oneDNN, forward and backward.
/// LibTorch itself multiplies float32 matrices by MKL, which takes twice the
/// time on processors that are not Intel's.
torch::Tensor onednn_linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias);

} // namespace torch_attention::kernels
