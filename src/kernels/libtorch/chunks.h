#pragma once

#include <kernels/attention.h>

/// Chunks as sequences of their own, for kernels that know no chunks.
namespace torch_attention::kernels {

/// Returns whether `a`, of four dimensions, is attention of all tokens that
/// hides keys by chunks, or by chunks and `causal`, and by nothing else.
bool has_chunks_alone(const Attention& a);

/// Returns `a` as attention without chunks: they become heads where the memory
/// of the query's heads is contiguous, else sequences. For T that is a multiple
/// of the chunk.
Attention with_chunks_apart(const Attention& a);

/// Returns the output of `with_chunks_apart(a)` as that of `a`, (B, H, T, Dv).
torch::Tensor joined_chunks(const Attention& a, const torch::Tensor& output);

/// Returns tokens [begin, end) of `a`, queries and keys.
Attention tokens_between(const Attention& a, int64_t begin, int64_t end);

} // namespace torch_attention::kernels
