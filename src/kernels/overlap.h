#pragma once

#include <torch/types.h>

/// Elements of strided tensors that lie at one place in memory.
namespace torch_attention::kernels {

/// Returns whether two elements of `x` share memory, as those of an expanded
/// tensor do.
bool overlaps_itself(const torch::Tensor& x);

/// Returns whether an element of `a` and one of `b` share memory. Two views
/// that only lie between each other, as halves of each row do, share none.
bool overlap(const torch::Tensor& a, const torch::Tensor& b);

} // namespace torch_attention::kernels
