#pragma once

#include <torch/types.h>

/// Elements of strided tensors at the same address.
namespace torch_attention::kernels {

/// Returns whether two elements of `x` share memory, as those of an expanded
/// tensor do.
bool overlaps_itself(const torch::Tensor& x);

/// Returns whether an element of `a` and one of `b` share memory. Interleaved
/// views, such as halves of each row, share none.
bool overlap(const torch::Tensor& a, const torch::Tensor& b);

} // namespace torch_attention::kernels
