#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
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
/// int64 (B) on the caches' device, which does not have to be waited for. The
/// device refuses rows that a cache does not have.
void write_rows(std::initializer_list<NewRows> all, const torch::Tensor& first);

/// Returns whether the memory of `x` may be copied, as `write_rows_to_memory`
/// and `replace_sequences` do.
bool can_copy_memory(const torch::Tensor& x);

/// Returns `rows` in `dtype`, each contiguous.
torch::Tensor contiguous_rows(const torch::Tensor& rows, torch::Dtype dtype);

/// Writes the first `counts[b]` of `contiguous_rows` (B, G, T, D) of each
/// sequence b: head g of token t to the address `place(b, g, t)`, which several
/// threads ask for.
void write_rows_to_memory(
    const torch::Tensor& rows,
    torch::IntArrayRef counts,
    c10::function_ref<std::byte*(int64_t b, int64_t g, int64_t t)> place);

/// Writes `sequences` (N, G, R, D), contiguous, over the sequences `to` of
/// `cache` (B, G, R, D), which has contiguous rows and the same dtype.
/// Allocates nothing, so that it cannot fail halfway.
void replace_sequences(
    const torch::Tensor& cache,
    const torch::Tensor& sequences,
    torch::IntArrayRef to);

} // namespace torch_attention::kernels
