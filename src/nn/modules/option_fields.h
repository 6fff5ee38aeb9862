#pragma once

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/forward.h>

/// Functions that depend on all options. Each names all fields, so that a new
/// option does not compile until it is added here.
namespace torch_attention::detail {

struct OptionFields {
  /// Returns whether no argument is set.
  static bool is_empty(const ForwardOptions& call) {
    const auto& [cu_seqlens, cu_seqlens_k, key_lengths, key_padding_mask, mask, block_mask, bias, visible_blocks, positions, rotary_cos, rotary_sin, value_input, global_tokens, scores] =
        call;
    const auto all_undefined = [](const auto&... tensors) {
      return (!tensors.defined() && ...);
    };
    return all_undefined(
               cu_seqlens,
               cu_seqlens_k,
               key_lengths,
               key_padding_mask,
               mask,
               block_mask,
               bias,
               visible_blocks,
               positions,
               rotary_cos,
               rotary_sin,
               value_input,
               global_tokens) &&
        !scores;
  }

  /// Returns whether `kernels::small_module` supports the options; it has no
  /// dropout.
  static bool is_small(const MultiHeadAttentionOptions& options) {
    // It supports sizes, biases of layers, and rules for scores.
    const auto& [d_in, d_out, context_length, num_heads, dropout, qkv_bias, query_bias, key_bias, value_bias, rule, head_dim, value_dim, kernel, out_proj, out_bias, register_mask, num_kv_heads, qk_norm, rotary, alibi, sinks, temperature, clip_qkv, value_norm_eps, value_scale, rotate_values, query_scale, out_norm, output_gate, block_scope, needs_blocks, needs_value_input] =
        options;
    return !qk_norm && !rotary && !alibi && !sinks && !temperature &&
        !clip_qkv && !value_norm_eps && value_scale == 1 && !query_scale &&
        !out_norm && !output_gate && !needs_blocks && !needs_value_input;
  }
};

} // namespace torch_attention::detail
