#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/rotary.h>

namespace torch_attention::functional {

/// Rotary position embedding (Su et al. 2021, section 3.4.2): rotates pairs of
/// elements of queries or keys by angles that grow with the position, so that
/// the dot product of a query and a key depends on their distance only.
///
/// x (..., T, D) with integer positions (T), or x (B, ..., T, D) with positions
/// (B, T) -> the shape and dtype of x. Angles, cosines and sines are rounded to
/// float32 as in `transformers`' `LlamaRotaryEmbedding`, for every dtype of x,
/// and so are positions from 2^24 on; bfloat16 and float16 are rotated in
/// float32. Differentiable in x. Scalings that depend on the length of the
/// sequence take the highest position + 1 as the length.
///
/// Throws c10::Error if shapes, dtypes or devices do not fit.
///
/// Example:
/// ```
/// namespace F = torch_attention::functional;
/// auto rotated = F::rotary_embedding(
///     query, torch::arange(query.size(-2)),
///     RotaryOptions().pairing(RotaryPairing::kInterleaved));
/// ```
TORCH_ATTENTION_API torch::Tensor rotary_embedding(
    const torch::Tensor& x,
    const torch::Tensor& positions,
    const RotaryOptions& options = {});

/// Rotates by the cosines and sines of `tables`, whose shapes `RotaryTables`
/// documents; x (..., T, D) -> its shape and dtype. bfloat16 and float16 are
/// rotated in float32. Differentiable in x and in the tables.
///
/// Throws c10::Error if shapes, dtypes or devices do not fit, or a position is
/// not in the tables.
///
/// Example:
/// ```
/// // cos and sin (T, D / 2)
/// auto rotated = F::rotary_embedding(query, RotaryTables(cos, sin));
/// ```
TORCH_ATTENTION_API torch::Tensor rotary_embedding(
    const torch::Tensor& x,
    const RotaryTables& tables);

} // namespace torch_attention::functional
