#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/indexer.h>
#include <torch_attention/nn/options/rotary.h>
#include <torch_attention/nn/options/rule_options.h>
#include <torch_attention/nn/options/score_rule.h>
#include <torch_attention/nn/options/temperature.h>

#include <cstdint>
#include <optional>

namespace torch_attention {

/// Options for `LatentAttention`. The defaults are DeepSeek-V3's.
///
/// Example:
/// ```
/// LatentAttention attention(
///     LatentAttentionOptions(7168, 7168, 4096, 128).query_rank(1536));
/// ```
struct TORCH_ATTENTION_API LatentAttentionOptions
    : RuleOptions<LatentAttentionOptions> {
  LatentAttentionOptions(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      int64_t num_heads);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each output token.
  TORCH_ARG(int64_t, d_out);

  /// the largest number of tokens that `forward` takes.
  TORCH_ARG(int64_t, context_length);

  /// number of heads.
  TORCH_ARG(int64_t, num_heads);

  /// size of the latent vector from which all heads' queries are projected
  /// (`q_lora_rank`). Default: none, queries are projected from the input token
  TORCH_ARG(std::optional<int64_t>, query_rank) = std::nullopt;

  /// size of the latent vector from which all heads' keys and values are
  /// projected (`kv_lora_rank`). Default: 512
  TORCH_ARG(int64_t, kv_rank) = 512;

  /// size of the part of each head's query and key that is not rotated
  /// (`qk_nope_head_dim`). Default: 128
  TORCH_ARG(int64_t, nope_dim) = 128;

  /// size of the rotated part, even; all heads share the key's rotated part
  /// (`qk_rope_head_dim`). Default: 64
  TORCH_ARG(int64_t, rope_dim) = 64;

  /// size of each head's value (`v_head_dim`). Default: 128
  TORCH_ARG(int64_t, value_dim) = 128;

  /// the rotary embedding of `rope_dim` elements. If you change it, set
  /// `pairing` as well: the default of `RotaryOptions` is not DeepSeek's. With
  /// std::nullopt nothing is rotated, as in Kimi Linear; `rope_dim` is then the
  /// part of the key that heads share.
  /// Default: RotaryOptions().pairing(RotaryPairing::kInterleaved)
  TORCH_ARG(std::optional<RotaryOptions>, rotary) =
      RotaryOptions().pairing(RotaryPairing::kInterleaved);

  /// multiply queries by a factor that grows with their position, as in
  /// Mistral 4. Default: no
  TORCH_ARG(std::optional<TemperatureOptions>, temperature) = std::nullopt;

  /// multiply queries by this constant, before they are rotated, as in LongCat
  /// Flash (Meituan 2025). Default: 1
  TORCH_ARG(double, query_scale) = 1.0;

  /// multiply the latent vector of keys and values by this constant after its
  /// norm, as in LongCat Flash. Default: 1
  TORCH_ARG(double, latent_scale) = 1.0;

  /// add a bias to `q_a_proj`, `kv_a_proj_with_mqa` and `o_proj`.
  /// Default: false
  TORCH_ARG(bool, bias) = false;

  /// eps of the RMS norms of latent vectors. Default: 1e-6
  TORCH_ARG(double, norm_eps) = 1e-6;

  /// attend only to the keys that an `Indexer` chooses, as in DeepSeek-V3.2;
  /// requires `query_rank`. Masks and biases of a call are then for all heads,
  /// and `cu_seqlens` is refused. Default: no
  TORCH_ARG(std::optional<IndexerOptions>, indexer) = std::nullopt;

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. Default: causal
  TORCH_ARG(ScoreRule, rule) = ScoreRule::make_causal();

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

} // namespace torch_attention
