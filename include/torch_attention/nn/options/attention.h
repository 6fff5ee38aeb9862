#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace torch_attention {

/// How attention is computed. All kernels compute the same function; they
/// differ in speed, memory and, under dropout, in the random stream.
enum class Kernel {
  /// The fastest kernel that computes the function asked for.
  kAuto,
  /// The Python classes' sequence, op for op: matmul, `masked_fill_`, softmax,
  /// dropout, matmul. A seeded run equals Python's, dropout included. Memory
  /// grows with T x S.
  kReference,
  /// LibTorch's scaled dot product attention. Forms no T x S tensor, except
  /// for dropout on the CPU and for masks that are not causal.
  kFused,
};

/// Prints `auto`, `reference` or `fused`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    Kernel kernel);

/// Options for `SelfAttentionV1` and `SelfAttentionV2`.
///
/// Example:
/// ```
/// SelfAttentionV2 attention(SelfAttentionOptions(3, 2).qkv_bias(true));
/// ```
struct TORCH_ATTENTION_API SelfAttentionOptions {
  SelfAttentionOptions(int64_t d_in, int64_t d_out);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each query, key, value and output token.
  TORCH_ARG(int64_t, d_out);

  /// add a bias to the query, key and value projections. `SelfAttentionV1` has
  /// none and refuses `true`. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// factor of the scores. Default: 1 / sqrt(d_out)
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

/// Options for `CausalAttention`.
///
/// Example:
/// ```
/// CausalAttention attention(CausalAttentionOptions(3, 2, 6).dropout(0.1));
/// ```
struct TORCH_ATTENTION_API CausalAttentionOptions {
  CausalAttentionOptions(int64_t d_in, int64_t d_out, int64_t context_length);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each query, key, value and output token.
  TORCH_ARG(int64_t, d_out);

  /// the largest number of tokens that `forward` takes.
  TORCH_ARG(int64_t, context_length);

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// let each token attend only to itself and the tokens before it.
  /// Default: true
  TORCH_ARG(bool, causal) = true;

  /// factor of the scores. Default: 1 / sqrt(d_out)
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

/// Options for `MultiHeadAttention` and `MultiHeadAttentionWrapper`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(
///     MultiHeadAttentionOptions(768, 768, 1024, 12).qkv_bias(true));
/// ```
struct TORCH_ATTENTION_API MultiHeadAttentionOptions {
  MultiHeadAttentionOptions(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      int64_t num_heads);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each output token, all heads together; in
  /// `MultiHeadAttentionWrapper` the size of one head.
  TORCH_ARG(int64_t, d_out);

  /// the largest number of tokens that `forward` takes.
  TORCH_ARG(int64_t, context_length);

  /// number of query heads.
  TORCH_ARG(int64_t, num_heads);

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// let each token attend only to itself and the tokens before it.
  /// Default: true
  TORCH_ARG(bool, causal) = true;

  /// factor of the scores. Default: 1 / sqrt(head_dim)
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;

  /// project the concatenated heads by `out_proj`. Not read by
  /// `MultiHeadAttentionWrapper`, which has no such projection. Default: true
  TORCH_ARG(bool, out_proj) = true;

  /// number of key and value heads, a divisor of `num_heads`: consecutive
  /// query heads share one (grouped-query attention, Ainslie et al. 2023).
  /// `MultiHeadAttentionWrapper` takes only `num_heads`. Default: num_heads
  TORCH_ARG(std::optional<int64_t>, num_kv_heads) = std::nullopt;
};

namespace functional {

/// Options for `scaled_dot_product_attention` and
/// `scaled_dot_product_attention_with_weights`.
///
/// Example:
/// ```
/// namespace F = torch_attention::functional;
/// F::scaled_dot_product_attention(
///     query, key, value,
///     F::ScaledDotProductAttentionFuncOptions().causal(true));
/// ```
struct TORCH_ATTENTION_API ScaledDotProductAttentionFuncOptions {
  /// hide later keys: the T queries are the last T of the S positions, so that
  /// query t attends to keys 0 ... S - T + t. Default: false
  TORCH_ARG(bool, causal) = false;

  /// bool tensor that broadcasts to the scores (..., T, S); true hides a key
  /// from a query, as in `masked_fill_`. (LibTorch's `attn_mask` means the
  /// opposite: pass its negation.) Default: none
  TORCH_ARG(torch::Tensor, mask) = {};

  /// floating-point tensor that broadcasts to the scores (..., T, S) and is
  /// added to them after the scale. Default: none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// factor of the scores. Default: 1 / sqrt(head_dim)
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;

  /// probability that an attention weight is dropped. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// whether dropout is applied. Default: true
  TORCH_ARG(bool, training) = true;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

} // namespace functional

} // namespace torch_attention
