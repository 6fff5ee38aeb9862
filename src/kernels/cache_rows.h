#pragma once

#include <torch/types.h>

namespace torch_attention::kernels {

/// Writes the first `counts[b]` of `rows` (B, G, T, D), which may be of another
/// dtype, to `cache` (B, G, capacity, D) from its row `first[b]` on, for each
/// sequence b.
void write_rows(
    const torch::Tensor& cache,
    const torch::Tensor& rows,
    torch::IntArrayRef first,
    torch::IntArrayRef counts);

} // namespace torch_attention::kernels
