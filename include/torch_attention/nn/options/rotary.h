#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

namespace torch_attention {

/// The two elements of a head that are rotated together, among the `dim` that
/// are rotated. Weights are trained for one pairing: the other gives other
/// results.
enum class RotaryPairing {
  /// i and i + dim / 2: GPT-NeoX, and Llama and most others as `transformers`
  /// has them.
  kHalves,
  /// 2 i and 2 i + 1: the paper, GPT-J, and Llama as Meta has it.
  kInterleaved,
};

/// Prints `halves` or `interleaved`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    RotaryPairing pairing);

/// The change of rotation for contexts longer than those a model was first
/// trained for: `factor` times as long.
enum class RotaryScaling {
  /// All pairs turn `factor` times slower (position interpolation, Chen et al.
  /// 2023).
  kLinear,
  /// Pairs that turn often within the original context stay, the slow ones turn
  /// `factor` times slower, those between by their number of turns: Llama 3.1
  /// and later (`rope_type` "llama3" of `transformers`).
  kLlama3,
  /// As with kLlama3, but the pairs between turn by their place; cosines and
  /// sines are multiplied by `attention_factor` (YaRN, Peng et al. 2023). For
  /// `mscale` and `mscale_all_dim` of `transformers` pass the
  /// `attention_factor` that they make.
  kYarn,
  /// `theta` grows with the text, once it is longer than the original context
  /// (dynamic NTK scaling, `rope_type` "dynamic" of `transformers`). Keys in a
  /// cache stay as they were rotated, as there.
  kDynamic,
  /// Each pair turns slower by a factor of its own: one of `short_factors` in
  /// texts up to the original context, one of `long_factors` in longer ones;
  /// cosines and sines are multiplied by `attention_factor` (LongRoPE, Ding et
  /// al. 2024). A text that grows beyond the original context needs its cache
  /// again: `decode` throws there. Here and for kDynamic the longest sequence
  /// of a batch decides for all; in `forward` padding counts as text, unless
  /// `key_lengths` or `positions` say otherwise.
  kLongRope,
};

/// Prints `linear`, `llama3`, `yarn`, `dynamic` or `longrope`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    RotaryScaling scaling);

/// Options for rotary position embedding (Su et al. 2021, "RoFormer: Enhanced
/// Transformer with Rotary Position Embedding").
///
/// Example:
/// ```
/// MultiHeadAttention attention(
///     MultiHeadAttentionOptions(4096, 4096, 8192, 32)
///         .num_kv_heads(8)
///         .rotary(RotaryOptions().theta(500000)));
/// ```
struct TORCH_ATTENTION_API RotaryOptions {
  /// pair i of a token at position p is rotated by p / theta^(2 i / dim).
  /// Default: 10000
  TORCH_ARG(double, theta) = 10000.0;

  /// number of leading elements of each head that are rotated, even.
  /// Default: head_dim
  TORCH_ARG(std::optional<int64_t>, dim) = std::nullopt;

  /// which two elements are rotated together. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;

  /// by how much slower pairs turn, all or those that `scaling` chooses. For
  /// kLongRope only `attention_factor` goes by it. Default: 1
  TORCH_ARG(double, factor) = 1.0;

  /// which pairs `factor` slows. Default: RotaryScaling::kLinear
  TORCH_ARG(RotaryScaling, scaling) = RotaryScaling::kLinear;

  /// the tokens that the model was first trained for:
  /// `original_max_position_embeddings`. All scalings but kLinear need it.
  TORCH_ARG(std::optional<int64_t>, original_context_length) = std::nullopt;

  /// turns within the original context from which on a pair is not slowed:
  /// `high_freq_factor` of Llama 3, `beta_fast` of YaRN. Default: 4, 32
  TORCH_ARG(std::optional<double>, fast_turns) = std::nullopt;

  /// turns up to which it is slowed by all of `factor`: `low_freq_factor` of
  /// Llama 3, `beta_slow` of YaRN. Default: 1
  TORCH_ARG(double, slow_turns) = 1.0;

  /// factor of cosines and sines, of kYarn and kLongRope. Default: 1 + 0.1
  /// ln(factor) and sqrt(1 + ln(factor) / ln(original_context_length)), at
  /// least 1
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;

  /// whether YaRN rounds the places between which pairs are slowed in part to
  /// whole pairs; gpt-oss does not. Default: true
  TORCH_ARG(bool, truncate) = true;

  /// how much slower each of the dim / 2 pairs turns in short texts, of
  /// kLongRope. Default: none
  TORCH_ARG(std::vector<double>, short_factors) = {};

  /// how much slower each of the dim / 2 pairs turns in long texts, of
  /// kLongRope. Default: none
  TORCH_ARG(std::vector<double>, long_factors) = {};
};

/// Cosines and sines of the angles to rotate by, in place of those that
/// `RotaryOptions` make: for angles of positions of several dimensions, or a
/// model that brings its tables along, as ONNX's RotaryEmbedding does.
///
/// Example:
/// ```
/// functional::rotary_embedding(
///     query, RotaryTables(cos_cache, sin_cache).positions(position_ids));
/// ```
struct TORCH_ATTENTION_API RotaryTables {
  RotaryTables(torch::Tensor cos, torch::Tensor sin);

  /// cosines, floating-point: (T, pairs), or (B, T, pairs) for x (B, ..., T,
  /// D). The first 2 * pairs elements of a head are rotated. With `positions`
  /// (N, pairs), of the positions 0 to N - 1.
  TORCH_ARG(torch::Tensor, cos);

  /// sines of the same angles.
  TORCH_ARG(torch::Tensor, sin);

  /// integer tensor (T), or (B, T) for x (B, ..., T, D): the row of each token
  /// in the tables. Default: the tables have a row for each token
  TORCH_ARG(torch::Tensor, positions) = {};

  /// which two elements are rotated together. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;
};

} // namespace torch_attention
