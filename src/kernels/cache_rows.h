#pragma once

#include <torch/types.h>

#include <initializer_list>

namespace torch_attention::kernels {

/// New rows (B, G, T, D) for a cache (B, G, capacity, D). Their dtype may
/// differ from the cache's.
struct NewRows {
  const torch::Tensor& cache;
  const torch::Tensor& rows;
};

/// Writes, for each sequence b, the first `counts[b]` rows of `all`, which have
/// one shape and device, to their caches from row `first[b]` on.
void write_rows(
    std::initializer_list<NewRows> all,
    torch::IntArrayRef first,
    torch::IntArrayRef counts);

/// Writes all rows of each sequence b to its caches from row `first[b]` on:
/// int64 (B) on the caches' device, which does not have to be waited for.
void write_rows(std::initializer_list<NewRows> all, const torch::Tensor& first);

/// Returns whether `replace_sequences` supports `cache`.
bool can_replace(const torch::Tensor& cache);

/// Writes `sequences` (N, G, R, D), contiguous, over the sequences `to` of
/// `cache` (B, G, R, D), which has contiguous rows and the same dtype.
/// Allocates nothing, so that it cannot fail halfway.
void replace_sequences(
    const torch::Tensor& cache,
    const torch::Tensor& sequences,
    torch::IntArrayRef to);

} // namespace torch_attention::kernels
