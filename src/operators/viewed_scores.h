#pragma once

#include <torch/types.h>

/// Attention whose scores a model views with more dimensions before it masks
/// them, as (B H, T, S) with (B, H, T, S). Ours has those dimensions
/// throughout.
namespace torch_attention::operators {

/// Returns x (..., any, any), which broadcasts to the scores
/// query transposed_key in all dimensions but its last two, with the dimensions
/// that scores have in a view of `sizes`; -1 in them is what the others leave.
///
/// Returns an empty tensor, which `takes` refuses, if x does not broadcast, if
/// the view does more than split dimensions, or if `back`, that of a later
/// view, are not the sizes that the scores had.
torch::Tensor in_view(
    const torch::Tensor& x,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    torch::IntArrayRef sizes,
    torch::IntArrayRef back);

/// Returns an output (..., T, Dv) of attention in that view, as the product of
/// weights and values would have it without.
torch::Tensor out_of_view(
    const torch::Tensor& output,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key);

} // namespace torch_attention::operators
