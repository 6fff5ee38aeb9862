#pragma once

#include <cpu/int8_rows.h>

#include <torch/types.h>

#include <cstdint>

/// Rows of int8 with a scale each, as caches store keys and values: a tensor
/// (..., N + kScaleBytes) of N numbers and the bytes of a float.
namespace torch_attention::kernels {

using cpu::kScaleBytes;

/// Returns how many elements of `dtype` a stored row of `size` numbers has.
inline int64_t stored_size(torch::Dtype dtype, int64_t size) {
  return dtype == torch::kInt8 ? size + kScaleBytes : size;
}

/// Returns x (B, G, T, N), floating-point, as rows of int8: the scale of a row
/// is its largest absolute number / 127, and its numbers are divided by it and
/// rounded to the nearest integer, ties to even. The scale of a row that is not
/// finite is NaN.
torch::Tensor quantized(const torch::Tensor& x);

/// Returns the first `size` numbers of rows (B, G, T, N + kScaleBytes) in a
/// floating-point dtype.
torch::Tensor dequantized(
    const torch::Tensor& rows,
    int64_t size,
    torch::Dtype dtype);

} // namespace torch_attention::kernels
