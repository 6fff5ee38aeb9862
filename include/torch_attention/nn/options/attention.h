#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/block_mask.h>
#include <torch_attention/nn/options/block_scope.h>
#include <torch_attention/nn/options/head_norm.h>
#include <torch_attention/nn/options/output_gate.h>
#include <torch_attention/nn/options/rotary.h>
#include <torch_attention/nn/options/rule_options.h>
#include <torch_attention/nn/options/score_function.h>
#include <torch_attention/nn/options/score_rule.h>
#include <torch_attention/nn/options/temperature.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace torch_attention {

namespace detail {
struct OptionFields;
}

/// Selects the implementation of attention. All compute the same function; they
/// differ in speed, memory and, under dropout, in the random numbers.
enum class Kernel {
  /// The fastest kernel that supports the call, unless `set_default_kernel`
  /// names another.
  kAuto,
  /// The Python classes' sequence, op for op: matmul, `masked_fill_`, softmax,
  /// dropout, matmul. A seeded run equals Python's, dropout included. Memory
  /// grows with T x S.
  kReference,
  /// One pass over tiles of scores that never forms a T x S tensor: our kernels
  /// on the CPU, with their own random numbers for dropout; LibTorch's on other
  /// devices. LibTorch's have neither `softcap` nor `sinks`, which use
  /// kReference there.
  kFused,
};

/// Prints `auto`, `reference` or `fused`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    Kernel kernel);

/// Sets what `Kernel::kAuto` means in this process, for all functions and
/// modules that do not name another kernel, from their next call on. With
/// `Kernel::kReference` a seeded training run equals Python's. Any thread may
/// call it.
///
/// Example:
/// ```
/// set_default_kernel(Kernel::kReference);
/// ```
TORCH_ATTENTION_API void set_default_kernel(Kernel kernel);

/// Returns the last argument of `set_default_kernel`; initially
/// `Kernel::kAuto`, the fastest.
TORCH_ATTENTION_API Kernel default_kernel();

/// Options for `SelfAttentionV1` and `SelfAttentionV2`.
///
/// Example:
/// ```
/// SelfAttentionV2 attention(SelfAttentionOptions(3, 2).qkv_bias(true));
/// ```
struct TORCH_ATTENTION_API SelfAttentionOptions
    : ScoreOptions<SelfAttentionOptions> {
  SelfAttentionOptions(int64_t d_in, int64_t d_out);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each query, key, value and output token.
  TORCH_ARG(int64_t, d_out);

  /// add a bias to the query, key and value projections. `SelfAttentionV1` has
  /// none and refuses `true`. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// all rules for scores; each is also an option of `ScoreOptions`. Rules that
  /// hide keys are refused. Default: only the scale
  TORCH_ARG(ScoreRule, rule) = {};

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

/// Options for `CausalAttention`.
///
/// Example:
/// ```
/// CausalAttention attention(CausalAttentionOptions(3, 2, 6).dropout(0.1));
/// ```
struct TORCH_ATTENTION_API CausalAttentionOptions
    : RuleOptions<CausalAttentionOptions> {
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

  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. Default: causal
  TORCH_ARG(ScoreRule, rule) = ScoreRule::make_causal();

  /// register the buffer `mask` (context_length, context_length), as Python's
  /// class does. `causal` alone decides which keys are hidden; without the
  /// buffer a long context costs no memory (4 GB for 32768 tokens). Default:
  /// true
  TORCH_ARG(bool, register_mask) = true;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

/// Options for `MultiHeadAttentionWrapper`, whose heads are `CausalAttention`.
///
/// Example:
/// ```
/// MultiHeadAttentionWrapper attention(
///     MultiHeadAttentionWrapperOptions(3, 2, 6, 2).dropout(0.1));
/// ```
struct TORCH_ATTENTION_API MultiHeadAttentionWrapperOptions
    : RuleOptions<MultiHeadAttentionWrapperOptions> {
  MultiHeadAttentionWrapperOptions(
      int64_t d_in,
      int64_t d_out,
      int64_t context_length,
      int64_t num_heads);

  /// size of each input token.
  TORCH_ARG(int64_t, d_in);

  /// size of each head's query, key, value and output. The output of the module
  /// has num_heads * d_out.
  TORCH_ARG(int64_t, d_out);

  /// the largest number of tokens that `forward` takes.
  TORCH_ARG(int64_t, context_length);

  /// number of heads.
  TORCH_ARG(int64_t, num_heads);

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. Default: causal
  TORCH_ARG(ScoreRule, rule) = ScoreRule::make_causal();

  /// register the buffer `mask` (context_length, context_length), as Python's
  /// class does. `causal` alone decides which keys are hidden; without the
  /// buffer a long context costs no memory (4 GB for 32768 tokens). Default:
  /// true
  TORCH_ARG(bool, register_mask) = true;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

/// Options for `MultiHeadAttention`.
///
/// Example:
/// ```
/// MultiHeadAttention attention(
///     MultiHeadAttentionOptions(768, 768, 1024, 12).qkv_bias(true));
/// ```
struct TORCH_ATTENTION_API MultiHeadAttentionOptions
    : RuleOptions<MultiHeadAttentionOptions> {
  MultiHeadAttentionOptions(
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

  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. Default: causal
  TORCH_ARG(ScoreRule, rule) = ScoreRule::make_causal();

  /// size of each head's query and key. Default: d_out / num_heads
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;

  /// size of each head's value. Default: head_dim
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;

  /// project the concatenated heads by `out_proj`. Without it d_out is
  /// num_heads * value_dim. Default: true
  TORCH_ARG(bool, out_proj) = true;

  /// add a bias to `out_proj`. Default: true
  TORCH_ARG(bool, out_bias) = true;

  /// register the buffer `mask` (context_length, context_length), as Python's
  /// class does. `causal` alone decides which keys are hidden; without the
  /// buffer a long context costs no memory (4 GB for 32768 tokens). Default:
  /// true
  TORCH_ARG(bool, register_mask) = true;

  /// number of key and value heads, a divisor of `num_heads`: consecutive
  /// query heads share one (grouped-query attention, Ainslie et al. 2023).
  /// Default: num_heads
  TORCH_ARG(std::optional<int64_t>, num_kv_heads) = std::nullopt;

  /// normalise queries and keys by `q_norm` and `k_norm`. Default: no
  TORCH_ARG(std::optional<HeadNormOptions>, qk_norm) = std::nullopt;

  /// rotate queries and keys by their positions (rotary position embedding, Su
  /// et al. 2021). Default: no
  TORCH_ARG(std::optional<RotaryOptions>, rotary) = std::nullopt;

  /// subtract the distance between query and key, times
  /// `functional::alibi_slopes(num_heads)`, from the scores (ALiBi, Press et
  /// al. 2022, "Train Short, Test Long"). Default: false
  TORCH_ARG(bool, alibi) = false;

  /// register the parameter `sinks` (num_heads), initially zero: a learned
  /// score per head that takes part in the softmax and has no value, as in
  /// gpt-oss (OpenAI 2025; Xiao et al. 2023, "Efficient Streaming Language
  /// Models with Attention Sinks"). Default: false
  TORCH_ARG(bool, sinks) = false;

  /// multiply queries by a factor that grows with their position. Default: no
  TORCH_ARG(std::optional<TemperatureOptions>, temperature) = std::nullopt;

  /// clamp queries, keys and values to [-clip_qkv, clip_qkv], after the
  /// projections and after a norm before the rotary embedding, as in MPT, DBRX
  /// and OLMo. Default: no
  TORCH_ARG(std::optional<double>, clip_qkv) = std::nullopt;

  /// normalise each head's values by an RMS norm with this eps and without
  /// weights, as in Gemma 4 (Gemma Team 2026). Default: no
  TORCH_ARG(std::optional<double>, value_norm_eps) = std::nullopt;

  /// multiply values by this constant, after their norm, as in MiMo-V2-Flash.
  /// Default: 1
  TORCH_ARG(double, value_scale) = 1.0;

  /// rotate values, too, by the angles of `rotary`, which it needs, as in the
  /// encoders of CLVP. Default: false
  TORCH_ARG(bool, rotate_values) = false;

  /// register the parameter `query_scale` (head_dim), initially zero, and
  /// multiply each element of a query, after norm and rotary embedding, by
  /// softplus(query_scale) / ln(2), which is 1 for zero. As in TimesFM (Das et
  /// al. 2024, "A decoder-only foundation model for time-series forecasting").
  /// Default: false
  TORCH_ARG(bool, query_scale) = false;

  /// normalise the heads' context by `out_norm`, before the gate and
  /// `out_proj`: with HeadNormScope::kAllHeads as in BitNet b1.58 (Wang et al.
  /// 2022, "Foundation Transformers"). Default: no
  TORCH_ARG(std::optional<HeadNormOptions>, out_norm) = std::nullopt;

  /// multiply the heads' context by a gate, a function of `W_gate(x)`, before
  /// `out_proj`, as in Qwen3-Next. Default: no
  TORCH_ARG(std::optional<OutputGateOptions>, output_gate) = std::nullopt;

  /// the rules that do not apply within a block of
  /// `ForwardOptions().visible_blocks`. Default: BlockScope::kCausal
  TORCH_ARG(BlockScope, block_scope) = BlockScope::kCausal;

  /// refuse calls with several tokens and no `visible_blocks`, for models whose
  /// prompts contain an image, such as PaliGemma. For a prompt without image
  /// pass -1 for all tokens. Default: false
  TORCH_ARG(bool, needs_blocks) = false;

  /// refuse calls without `ForwardOptions().value_input`, for models whose
  /// values are made of other tokens than their queries and keys, such as DETR.
  /// Such modules cannot `decode`. Default: false
  TORCH_ARG(bool, needs_value_input) = false;

  friend struct detail::OptionFields;
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
struct TORCH_ATTENTION_API ScaledDotProductAttentionFuncOptions
    : RuleOptions<ScaledDotProductAttentionFuncOptions> {
  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. Default: only the scale
  TORCH_ARG(ScoreRule, rule) = {};

  /// integer tensor (B), for query (B, ..., T, D): the number of keys of each
  /// sequence. Later keys are hidden: padding or rows not yet written.
  /// Default: S
  TORCH_ARG(torch::Tensor, key_lengths) = {};

  /// integer tensor (B), for query (B, ..., T, D): the position of the first
  /// query among the keys, for `causal`, windows and chunks. Default: S - T, in
  /// packed batches with the lengths of each sequence
  TORCH_ARG(torch::Tensor, query_offsets) = {};

  /// integer tensor (B + 1), 0, n1, n1 + n2, ...: query (1, H, N, D) or (H, N,
  /// D), key and value contain B packed sequences of n1, n2, ... tokens. Each
  /// attends only to itself, as in a padded batch but without the padding.
  /// `causal`, windows and chunks count the tokens of each sequence.
  /// `key_lengths`, `query_offsets`, `mask` and `bias` have the shapes for the
  /// padded batch: (B), and any shape that broadcasts to (B, H, longest T,
  /// longest S), of which each sequence reads its first rows and columns.
  /// Fastest on the CPU, where our kernels compute all sequences together;
  /// elsewhere they are computed one by one. Default: not packed
  TORCH_ARG(torch::Tensor, cu_seqlens) = {};

  /// `cu_seqlens` of key and value (..., M, D), if they belong to other tokens
  /// than the query. Default: cu_seqlens
  TORCH_ARG(torch::Tensor, cu_seqlens_k) = {};

  /// let consecutive query heads share a key and value head (grouped-query
  /// attention, Ainslie et al. 2023): query (..., H, T, D), key and value
  /// (..., G, S, D) with H divisible by G. Default: false
  TORCH_ARG(bool, enable_gqa) = false;

  /// bool tensor that broadcasts to the scores (..., T, S); true hides a key
  /// from a query, as in `masked_fill_`. (LibTorch's `attn_mask` means the
  /// opposite: pass its negation.) Default: none
  TORCH_ARG(torch::Tensor, mask) = {};

  /// mask as tiles, for T queries and S keys, and for query (T, D), (B, T, D)
  /// or (B, H, T, D). Hides keys beside all other options. Only our CPU kernels
  /// read the tiles; others get a bool mask of it. Default: none
  TORCH_ARG(BlockMask, block_mask) = {};

  /// floating-point tensor that broadcasts to the scores (..., T, S) and is
  /// added to them after the scale. Its dtype may differ from the query's, for
  /// example float32 with half-precision queries. A bias of -inf hides the key.
  /// Default: none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// floating-point tensor (H), for query (B, H, T, D): subtracts
  /// `alibi_slopes[h]` times the distance between query and key from the scores
  /// of head h (ALiBi, Press et al. 2022). `functional::alibi_slopes` returns
  /// the paper's slopes. Our CPU kernels form no T x S tensor for it, except
  /// for double backward; LibTorch's get it as a mask, and then half precision
  /// is computed in float32. Default: none
  TORCH_ARG(torch::Tensor, alibi_slopes) = {};

  /// floating-point tensor (H), for query (B, H, T, D): adds exp(sinks[h]) to
  /// the softmax denominator of head h, so that its weights add up to less than
  /// 1 (gpt-oss; Xiao et al. 2023, "Efficient Streaming Language Models with
  /// Attention Sinks"). A sink is a score without scale or softcap, computed in
  /// float32 or float64. LibTorch's kernels do not support it. Default: none
  TORCH_ARG(torch::Tensor, sinks) = {};

  /// function that changes the scores (..., T, S) after all options above
  /// except `sinks`. kAuto then uses kReference, which needs memory for T x S;
  /// kFused is refused. With `cu_seqlens` it is called once for each sequence,
  /// with scores (1, H, T, S). Default: none
  TORCH_ARG(ScoreFunction, scores) = {};

  /// function that changes the weights (..., T, S) after the softmax and before
  /// dropout. Kernels and `cu_seqlens` as for `scores`. Default: none
  TORCH_ARG(WeightFunction, weights) = {};

  /// probability that an attention weight is dropped. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// whether dropout is applied. Default: true
  TORCH_ARG(bool, training) = true;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

} // namespace functional

} // namespace torch_attention
