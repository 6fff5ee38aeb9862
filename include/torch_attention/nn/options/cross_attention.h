#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/head_norm.h>
#include <torch_attention/nn/options/rule_options.h>
#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>
#include <optional>

namespace torch_attention {

/// Options for `CrossAttention`.
///
/// Example:
/// ```
/// CrossAttention attention(
///     CrossAttentionOptions(512, 768, 512, 8).qkv_bias(true));
/// ```
struct TORCH_ATTENTION_API CrossAttentionOptions
    : ScoreOptions<CrossAttentionOptions> {
  CrossAttentionOptions(
      int64_t d_in,
      int64_t d_context,
      int64_t d_out,
      int64_t num_heads);

  /// size of each input token, which is projected to queries.
  TORCH_ARG(int64_t, d_in);

  /// size of each context token, which is projected to keys and values.
  TORCH_ARG(int64_t, d_context);

  /// size of each output token.
  TORCH_ARG(int64_t, d_out);

  /// number of query heads.
  TORCH_ARG(int64_t, num_heads);

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// add a bias to the query projection; Whisper, for example, has biases for
  /// queries and values only. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, query_bias) = std::nullopt;

  /// add a bias to the key projection. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, key_bias) = std::nullopt;

  /// add a bias to the value projection. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, value_bias) = std::nullopt;

  /// project the concatenated heads by `out_proj`. Without it d_out is
  /// num_heads * value_dim. Default: true
  TORCH_ARG(bool, out_proj) = true;

  /// add a bias to `out_proj`. Default: true
  TORCH_ARG(bool, out_bias) = true;

  /// number of key and value heads, a divisor of `num_heads`: consecutive
  /// query heads share one (grouped-query attention, Ainslie et al. 2023).
  /// Default: num_heads
  TORCH_ARG(std::optional<int64_t>, num_kv_heads) = std::nullopt;

  /// size of each head's query and key. Default: d_out / num_heads
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;

  /// size of each head's value. Default: head_dim
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;

  /// all rules for scores; each is also an option of `ScoreOptions`. Rules that
  /// hide keys are refused. Default: only the scale
  TORCH_ARG(ScoreRule, rule) = {};

  /// normalise queries and keys by `q_norm` and `k_norm`. Default: no
  TORCH_ARG(std::optional<HeadNormOptions>, qk_norm) = std::nullopt;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;

  /// refuse calls without `ForwardOptions().value_input`, and `make_cache`
  /// without its `value_input`, for models whose values are made of other
  /// tokens than their keys, such as DETR. Default: false
  TORCH_ARG(bool, needs_value_input) = false;
};

} // namespace torch_attention
