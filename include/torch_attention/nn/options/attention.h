#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/block_scope.h>
#include <torch_attention/nn/options/head_norm.h>
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

/// The way to compute attention. All kernels compute the same function; they
/// differ in speed, memory and, under dropout, in the random stream.
enum class Kernel {
  /// The fastest kernel that computes the function asked for, unless
  /// `set_default_kernel` names another.
  kAuto,
  /// The Python classes' sequence, op for op: matmul, `masked_fill_`, softmax,
  /// dropout, matmul. A seeded run equals Python's, dropout included. Memory
  /// grows with T x S.
  kReference,
  /// One pass over tiles of scores that never forms a T x S tensor: our own
  /// kernels on the CPU, with dropout from a stream of their own; LibTorch's on
  /// other devices, where `softcap` and `sinks`, which they lack, take
  /// kReference.
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

/// Returns what `set_default_kernel` was last given; at first `Kernel::kAuto`,
/// the fastest.
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

  /// the rules for scores as a whole, each of which is an option of
  /// `ScoreOptions`; those that hide keys are refused. Default: the scale alone
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

  /// the rules for scores and positions as a whole, each of which is an
  /// option of `RuleOptions`. Default: causal
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

  /// size of each query, key and value, hence of the output of one head: that
  /// of all has num_heads * d_out.
  TORCH_ARG(int64_t, d_out);

  /// the largest number of tokens that `forward` takes.
  TORCH_ARG(int64_t, context_length);

  /// number of heads.
  TORCH_ARG(int64_t, num_heads);

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: false
  TORCH_ARG(bool, qkv_bias) = false;

  /// the rules for scores and positions as a whole, each of which is an
  /// option of `RuleOptions`. Default: causal
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

  /// the same for each by itself: Whisper's keys have none, for example.
  /// Default: qkv_bias
  TORCH_ARG(std::optional<bool>, query_bias) = std::nullopt;

  /// Default: qkv_bias
  TORCH_ARG(std::optional<bool>, key_bias) = std::nullopt;

  /// Default: qkv_bias
  TORCH_ARG(std::optional<bool>, value_bias) = std::nullopt;

  /// the rules for scores and positions as a whole, each of which is an
  /// option of `RuleOptions`. Default: causal
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

  /// take the distance between query and key from their score, times
  /// `functional::alibi_slopes(num_heads)` (ALiBi, Press et al. 2022, "Train
  /// Short, Test Long"). Default: false
  TORCH_ARG(bool, alibi) = false;

  /// register the parameter `sinks` (num_heads), zero at first: a learned score
  /// of each head that takes its share of the weights and gives no value, as in
  /// gpt-oss (OpenAI 2025; Xiao et al. 2023, "Efficient Streaming Language
  /// Models with Attention Sinks"). Default: false
  TORCH_ARG(bool, sinks) = false;

  /// multiply queries by a factor that grows with their position. Default: no
  TORCH_ARG(std::optional<TemperatureOptions>, temperature) = std::nullopt;

  /// bound queries, keys and values to [-clip_qkv, clip_qkv], after their
  /// projections and a norm that precedes the rotary embedding, as MPT, DBRX
  /// and OLMo do. Default: no
  TORCH_ARG(std::optional<double>, clip_qkv) = std::nullopt;

  /// divide each head's values by the root of their mean square plus this
  /// number, without weights, as Gemma 4 does (Gemma Team 2026). Default: no
  TORCH_ARG(std::optional<double>, value_norm_eps) = std::nullopt;

  /// multiply the heads' context by sigmoid(W_gate(x)) before `out_proj`, with
  /// a projection `W_gate` that has a bias where that of queries has one, as in
  /// Qwen3-Next (Qiu et al. 2025, "Gated Attention for Large Language Models").
  /// Default: false
  TORCH_ARG(bool, output_gate) = false;

  /// what `ForwardOptions().visible_blocks` sets aside. Default:
  /// BlockScope::kCausal
  TORCH_ARG(BlockScope, block_scope) = BlockScope::kCausal;

  /// refuse calls of more than one token that lack `visible_blocks`, of models
  /// whose prompts have an image, as PaliGemma; -1 for all tokens stands for
  /// text alone. Default: false
  TORCH_ARG(bool, needs_blocks) = false;

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
  /// the rules for scores and positions as a whole, each of which is an
  /// option of `RuleOptions`. Default: the scale alone
  TORCH_ARG(ScoreRule, rule) = {};

  /// integer tensor (B), for query (B, ..., T, D): hides the keys from this
  /// number on, which may be padding or not written yet. Default: none
  TORCH_ARG(torch::Tensor, key_lengths) = {};

  /// integer tensor (B), for query (B, ..., T, D): the position of the first
  /// query among the keys, for `causal`, windows and chunks. Default: S - T,
  /// of each sequence of its own where they are packed
  TORCH_ARG(torch::Tensor, query_offsets) = {};

  /// integer tensor (B + 1), 0, n1, n1 + n2, ...: B sequences of n1, n2, ...
  /// tokens lie one after the other in query (1, H, N, D) or (H, N, D) and in
  /// key and value, and each attends to itself alone, as in a padded batch of
  /// them, but without its padding. `causal`, windows and the like go by the
  /// tokens of each; `key_lengths`, `query_offsets`, `mask` and `bias` are
  /// those of the padded batch: (B), and what broadcasts to (B, H, longest T,
  /// longest S), of which each sequence reads its first rows and columns.
  /// Fastest on the CPU, where our kernels take all sequences together;
  /// elsewhere one is computed after the other. Default: not packed
  TORCH_ARG(torch::Tensor, cu_seqlens) = {};

  /// the same of key and value (..., M, D), where those are not of the same
  /// tokens as the query. Default: cu_seqlens
  TORCH_ARG(torch::Tensor, cu_seqlens_k) = {};

  /// let consecutive query heads share a key and value head (grouped-query
  /// attention, Ainslie et al. 2023): query (..., H, T, D), key and value
  /// (..., G, S, D) with H divisible by G. Default: false
  TORCH_ARG(bool, enable_gqa) = false;

  /// bool tensor that broadcasts to the scores (..., T, S); true hides a key
  /// from a query, as in `masked_fill_`. (LibTorch's `attn_mask` means the
  /// opposite: pass its negation.) Default: none
  TORCH_ARG(torch::Tensor, mask) = {};

  /// floating-point tensor that broadcasts to the scores (..., T, S) and is
  /// added to them after the scale; of its own dtype, such as float32 beside
  /// queries of half precision. A key whose bias is -inf is hidden. Default:
  /// none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// floating-point tensor (H), for query (B, H, T, D): scores of head h lose
  /// `alibi_slopes[h]` for each position between query and key (ALiBi, Press et
  /// al. 2022). `functional::alibi_slopes` has the paper's. Our kernels on the
  /// CPU form no tensor of T x S for it, unless gradients are to be
  /// differentiated again; LibTorch's take it as a mask, beside
  /// which half precision is computed in float32. Default: none
  TORCH_ARG(torch::Tensor, alibi_slopes) = {};

  /// floating-point tensor (H), for query (B, H, T, D): exp(sinks[h]) is one
  /// more summand of what the weights of head h are divided by, so that they
  /// add up to less than 1 (gpt-oss; Xiao et al. 2023, "Efficient Streaming
  /// Language Models with Attention Sinks"). It is a score as it is, neither
  /// scaled nor capped, and computed with in float32 or float64. LibTorch's
  /// kernels lack it. Default: none
  TORCH_ARG(torch::Tensor, sinks) = {};

  /// function of the caller's that changes the scores (..., T, S) after all of
  /// the above but `sinks`. It needs kReference, which kAuto takes then, and
  /// memory of T x S; kFused is refused. Beside `cu_seqlens` it is called for
  /// each sequence by itself, with scores (1, H, T, S). Default: none
  TORCH_ARG(ScoreFunction, scores) = {};

  /// function of the caller's that changes the weights (..., T, S) after the
  /// softmax and before dropout. Kernels and `cu_seqlens` as for `scores`.
  /// Default: none
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
