#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>
#include <optional>
#include <tuple>

/// Attention as functions of tensors: the steps of the book's chapters, and
/// scaled dot product attention.
///
/// Sizes: `T` queries, `S` keys, `D` head_dim; `...` is any number of leading
/// dimensions, such as batch and heads.
namespace torch_attention::functional {

/// Returns `exp(x) / exp(x).sum(dim)`, the book's `softmax_naive`. It overflows
/// for x > 88 in float32; the modules use `torch::softmax`.
///
/// Example:
/// ```
/// auto weights = softmax_naive(torch::tensor({0.9544, 1.4950}));
/// ```
TORCH_ATTENTION_API torch::Tensor softmax_naive(
    const torch::Tensor& x,
    int64_t dim = 0);

/// Returns the dot products of all queries with all keys, without a scale.
///
/// query (..., T, D), key (..., S, D) -> (..., T, S). A single query (D) gives
/// (..., S).
///
/// Example:
/// ```
/// auto scores = attention_scores(inputs[1], inputs); // (6)
/// ```
TORCH_ATTENTION_API torch::Tensor attention_scores(
    const torch::Tensor& query,
    const torch::Tensor& key);

/// Returns the bool mask (T, S) of causal attention; true hides a key. The T
/// queries are the last T of the S positions: entry (t, s) is `s > S - T + t`.
/// For T == S it equals the Python classes' `mask.bool()`.
///
/// Example:
/// ```
/// scores.masked_fill_(causal_mask(6, 6), -INFINITY);
/// ```
TORCH_ATTENTION_API torch::Tensor causal_mask(
    int64_t T,
    int64_t S,
    torch::Device device = torch::kCPU);

/// Returns the slopes of ALiBi, float32 (num_heads): 2^(-8 / n), 2^(-16 / n),
/// ... if n = num_heads is a power of two. Otherwise the slopes for the power
/// of two below n, followed by every other slope for the power above it (Press
/// et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables
/// Input Length Extrapolation").
///
/// Throws c10::Error if `num_heads` is not positive.
///
/// Example:
/// ```
/// options.alibi_slopes(alibi_slopes(8)); // 1/2, 1/4, ..., 1/256
/// ```
TORCH_ATTENTION_API torch::Tensor alibi_slopes(int64_t num_heads);

/// Scales and masks scores (..., T, S) and returns their softmax over the keys,
/// of the same shape.
///
/// Without `scale` and `softcap`, in the Python classes' order: mask, then
/// divide by sqrt(head_dim). With either: multiply, then mask.
/// A query whose keys are all hidden gets zeros, where Python gives NaN.
/// `scores` does not change. `dropout` and `kernel` of the options are ignored.
///
/// Example:
/// ```
/// auto weights = attention_weights(scores, keys.size(-1),
///     ScaledDotProductAttentionFuncOptions().causal(true));
/// ```
TORCH_ATTENTION_API torch::Tensor attention_weights(
    const torch::Tensor& scores,
    int64_t head_dim,
    const ScaledDotProductAttentionFuncOptions& options = {});

/// Scaled dot product attention (Vaswani et al. 2017, section 3.2.1):
/// softmax(query key^T scale) value.
///
/// query (..., T, D), key (..., S, D), value (..., S, Dv) -> (..., T, Dv), all
/// of one floating-point dtype and device. The leading dimensions broadcast. A
/// query whose keys are all hidden gives zeros.
///
/// A NaN in a query, or in a key or value that it sees, makes its output NaN,
/// and so do scores of +inf (inf - inf). NaN and infinities in a key or value
/// that is hidden from it (by `causal`, windows, `chunk`, `mask`, `key_lengths`
/// or a bias of -inf) change neither its output nor any gradient. A score of
/// -inf, which an infinite key may have, hides the key as well. Our CPU kernels
/// guarantee this, and compute `Kernel::kReference`, too, if a query, key or
/// value is not finite: Python's operators would multiply hidden values by 0,
/// and 0 times NaN is NaN. Python's operators are used regardless, and without
/// this guarantee, with kReference under dropout or if finite inputs overflow,
/// if weights are returned, and with all kernels for double backward
/// (create_graph), forward-mode derivatives, vmap and tracing. On other devices
/// it depends on LibTorch's kernels.
///
/// Windows, chunks, offsets and lengths may be any 64-bit numbers.
///
/// With `cu_seqlens` sequences of different lengths are packed without padding:
/// query (1, H, N, D) or (H, N, D), where N is the total number of tokens.
///
/// Throws c10::Error if shapes, dtypes or devices do not fit, if the mask does
/// not broadcast to (..., T, S) or is not bool, if a tensor is not dense, or if
/// autograd would have to save a tensor made in inference mode.
///
/// Example:
/// ```
/// namespace F = torch_attention::functional;
/// auto context = F::scaled_dot_product_attention(
///     query, key, value,
///     F::ScaledDotProductAttentionFuncOptions().causal(true));
/// ```
TORCH_ATTENTION_API torch::Tensor scaled_dot_product_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options = {});

/// Like `scaled_dot_product_attention`, but also returns the attention weights
/// (..., T, S), after dropout. Always uses `Kernel::kReference`;
/// `Kernel::kFused` and `cu_seqlens` are refused.
///
/// Example:
/// ```
/// auto [context, weights] =
///     scaled_dot_product_attention_with_weights(query, key, value);
/// ```
TORCH_ATTENTION_API std::tuple<torch::Tensor, torch::Tensor>
scaled_dot_product_attention_with_weights(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const ScaledDotProductAttentionFuncOptions& options = {});

} // namespace torch_attention::functional
