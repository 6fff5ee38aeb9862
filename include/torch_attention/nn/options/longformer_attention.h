#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>

namespace torch_attention {

/// Options for `LongformerAttention`.
///
/// Example, as in longformer-base-4096:
/// ```
/// LongformerAttention attention(
///     LongformerAttentionOptions(768, 768, /*num_heads=*/12)
///         .attention_window(512));
/// ```
struct TORCH_ATTENTION_API LongformerAttentionOptions {
  LongformerAttentionOptions(int64_t d_in, int64_t d_out, int64_t num_heads);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each output token.
  TORCH_ARG(int64_t, d_out);

  /// number of heads, a divisor of d_out.
  TORCH_ARG(int64_t, num_heads);

  /// twice the number of tokens that a token sees on each side, beside itself;
  /// even. Default: 512
  TORCH_ARG(int64_t, attention_window) = 512;

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the six projections of queries, keys and values. Default:
  /// true
  TORCH_ARG(bool, qkv_bias) = true;

  /// add a bias to `out_proj`. Default: true
  TORCH_ARG(bool, out_bias) = true;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

} // namespace torch_attention
