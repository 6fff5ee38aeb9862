#pragma once

#include <kernels/attention.h>

#include <c10/util/FunctionRef.h>

/// Chunks as sequences of their own, for kernels that know no chunks.
namespace torch_attention::kernels {

/// Returns whether `a`, attention of all tokens without tensors of scores,
/// hides keys by chunks, or by chunks and `causal`, and by nothing else.
bool has_chunks_alone(const Attention& a);

/// Returns the output (B, H, T, Dv) of attention that `has_chunks_alone`, from
/// those of `attend`, which gets attention without chunks: they become heads
/// where the memory of the query's heads is contiguous, else sequences. What is
/// after the last whole chunk is attended to by itself.
torch::Tensor by_chunks(
    const Attention& a,
    c10::function_ref<torch::Tensor(const Attention&)> attend);

} // namespace torch_attention::kernels
