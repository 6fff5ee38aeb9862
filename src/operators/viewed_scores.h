#pragma once

#include <torch/types.h>

/// Attention whose scores a model views with more dimensions before it masks
/// them, such as (B H, T, S) as (B, H, T, S). Our operator then uses the
/// dimensions of the view throughout.
namespace torch_attention::operators {

/// Returns x (..., any, any) with the dimensions that the scores query
/// transposed_key have in a view of `sizes`, one of which may be -1. All
/// dimensions of x but its last two broadcast to the scores.
///
/// Returns an empty tensor, which `takes` refuses, if x does not broadcast, if
/// the view does more than split dimensions, or if `back`, the sizes of the
/// later view, are not the original sizes of the scores.
torch::Tensor in_view(
    const torch::Tensor& x,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    torch::IntArrayRef sizes,
    torch::IntArrayRef back);

/// Returns an output (..., T, Dv), computed in the view's dimensions, with the
/// dimensions of the original product of weights and values.
torch::Tensor out_of_view(
    const torch::Tensor& output,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key);

} // namespace torch_attention::operators
