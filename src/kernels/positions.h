#pragma once

#include <kernels/attention.h>

/// Tensors that follow from the positions of queries and keys.
namespace torch_attention::kernels {

/// Bool (T, S), true hides: the keys after a query's own position.
torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device);

/// Returns true if the position of a key may hide it.
bool hides_by_position(const Attention& attention);

/// Bool, broadcasts to (..., T, S), true hides: what rule and `key_lengths`
/// say, for scores of `dim` dimensions. Undefined if nothing.
torch::Tensor hidden_by_position(
    const Attention& attention,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device);

/// The numbers that rule and `alibi_slopes` add to scores of `dim` dimensions:
/// (H, T, S) or (B, H, T, S) in the dtype of the slopes. Undefined if nothing.
torch::Tensor added_by_position(
    const Attention& attention,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device);

} // namespace torch_attention::kernels
