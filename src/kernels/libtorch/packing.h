#pragma once

#include <kernels/attention.h>
#include <kernels/libtorch/equal_heads.h>
#include <kernels/libtorch/fused_attention.h>

#include <optional>

/// Attention as sequences that lie one after the other, as LibTorch's fused
/// kernels take those of different lengths. No keys are copied where autograd
/// records nothing.
namespace torch_attention::kernels {

/// Returns whether `pack_sequences` packs `a`: there are not too many
/// sequences.
bool has_sequences_to_pack(const Attention& a);

/// Returns `call`, which has everything but operands and starts, with the
/// packed sequences of `a`: query_starts and key_starts.
FusedAttention pack_sequences(
    const Attention& a,
    const Operands& x,
    const FusedCall& call);

/// Returns whether `pack_chunks` packs `a`: each chunk of tokens is a sequence
/// of its own.
bool has_chunks_to_pack(const Attention& a);

FusedAttention pack_chunks(
    const Attention& a,
    const Operands& x,
    const FusedCall& call);

/// Returns whether `pack_cache` packs `a`: sequences of different lengths in
/// the rows of a cache, whose last query sees the last key.
bool has_cache_to_pack(const Attention& a);

FusedAttention pack_cache(
    const Attention& a,
    const Operands& x,
    const FusedCall& call);

} // namespace torch_attention::kernels
