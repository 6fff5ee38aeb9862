#pragma once

#include <kernels/attention.h>
#include <kernels/backward_node.h>

#include <cstdint>

/// The steps of `tiled`, for callers that handle autograd themselves.
namespace torch_attention::kernels {

/// The order of an output (B, H, T, Dv) in memory.
enum class OutputLayout {
  /// (B, T, H, Dv), as the projection after attention reads it
  kTokensFirst,
  /// (B, H, T, Dv)
  kHeadsFirst,
  /// as the query, for Dv = D
  kLikeQuery,
};

/// The results that a backward pass needs in addition to the attention.
struct TiledResults {
  /// (B, H, T, Dv)
  torch::Tensor output;
  /// (2, B, H, T): `maximum`, then `sum` of cpu::RowStatistics
  torch::Tensor statistics;
  uint64_t dropout_seed = 0;
};

/// Returns `attention` as the kernels read it: (B, H, T, D) and so on with
/// contiguous rows. Broadcast dimensions are copied only where needed. Mask and
/// bias are (B, H, T, S).
Attention prepared(const Attention& attention);

/// Draws from LibTorch's default generator.
uint64_t draw_seed();

/// Which statistics `run_forward` returns. For the backward pass it sums scores
/// in the order in which they are computed again, which takes longer for few
/// queries.
enum class Statistics { kNone, kAlone, kForBackward };

/// Computes the `prepared` attention. Statistics stay undefined unless
/// requested.
TiledResults run_forward(
    const Attention& attention,
    uint64_t dropout_seed,
    Statistics statistics,
    OutputLayout layout);

/// Returns the gradients of the first tensors of `tensors_of`; of slopes, sinks
/// and bias if they are wanted. `attention` as passed to `run_forward`; only
/// `grad_output` and `wanted` of `request` are read.
variable_list run_backward(
    const Attention& attention,
    const TiledResults& results,
    const BackwardRequest& request);

/// Computes `tiled` with the output in memory layout `layout`, if query has
/// four dimensions.
torch::Tensor tiled(const Attention& attention, OutputLayout layout);

/// Computes the forward pass of `tiled` without recording it. The output is
/// (..., T, Dv), and the statistics have one dimension.
TiledResults tiled_forward(const Attention& attention);

/// Returns the output of `tiled_forward` with the history that `tiled` would
/// give it. Computes nothing.
torch::Tensor tiled_recorded(
    const Attention& attention,
    const TiledResults& results);

} // namespace torch_attention::kernels
