#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

namespace torch_attention {

/// Selects which two of the `dim` rotated elements of a head form a pair.
/// Weights are trained for one pairing; with the other one results are wrong.
enum class RotaryPairing {
  /// i and i + dim / 2: GPT-NeoX, and Llama and most other models in
  /// `transformers`.
  kHalves,
  /// 2 i and 2 i + 1: the paper, GPT-J, and Meta's own Llama code.
  kInterleaved,
  /// i and i + dim / 4 in each half of the elements, whose number is a multiple
  /// of 4: Gemma 4's image encoder, where the first half goes by rows and the
  /// second by columns.
  kHalvesOfHalves,
};

/// Prints `halves`, `interleaved` or `halves of halves`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    RotaryPairing pairing);

/// Selects how the frequencies are scaled for contexts that are `factor` times
/// longer than the context of the original training.
enum class RotaryScaling {
  /// Divides all frequencies by `factor` (position interpolation, Chen et al.
  /// 2023).
  kLinear,
  /// Keeps high frequencies, divides low ones by `factor` and interpolates
  /// between them by the number of turns within the original context: Llama 3.1
  /// and later (`rope_type` "llama3" of `transformers`).
  kLlama3,
  /// Like kLlama3, but interpolates by the index of the pair, and multiplies
  /// cosines and sines by `attention_factor` (YaRN, Peng et al. 2023). For
  /// `mscale` and `mscale_all_dim` of `transformers` pass the
  /// `attention_factor` that follows from them.
  kYarn,
  /// Increases `theta` with the length of the sequence once it exceeds the
  /// original context (dynamic NTK scaling, `rope_type` "dynamic" of
  /// `transformers`). As there, cached keys are not rotated again.
  kDynamic,
  /// Divides the frequency of each pair by its own factor, from `short_factors`
  /// for sequences up to the original context and from `long_factors` for
  /// longer ones, and multiplies cosines and sines by `attention_factor`
  /// (LongRoPE, Ding et al. 2024). `decode` throws when a sequence grows beyond
  /// the original context, since its cache would have to be computed again. For
  /// kLongRope and kDynamic the longest sequence of a batch decides for all; in
  /// `forward` padding counts, unless `key_lengths` or `positions` exclude it.
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

  /// number of elements of each head that are rotated, the first ones; even.
  /// Default: head_dim
  TORCH_ARG(std::optional<int64_t>, dim) = std::nullopt;

  /// which two elements form a pair. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;

  /// divisor of the frequencies that `scaling` selects. kLongRope uses it only
  /// for `attention_factor`. Default: 1
  TORCH_ARG(double, factor) = 1.0;

  /// how frequencies are scaled. Default: RotaryScaling::kLinear
  TORCH_ARG(RotaryScaling, scaling) = RotaryScaling::kLinear;

  /// context length of the original training:
  /// `original_max_position_embeddings`. All scalings but kLinear need it.
  TORCH_ARG(std::optional<int64_t>, original_context_length) = std::nullopt;

  /// turns within the original context from which on a frequency is kept:
  /// `high_freq_factor` of Llama 3, `beta_fast` of YaRN. Default: 4, 32
  TORCH_ARG(std::optional<double>, fast_turns) = std::nullopt;

  /// turns up to which a frequency is divided by all of `factor`:
  /// `low_freq_factor` of Llama 3, `beta_slow` of YaRN. Default: 1
  TORCH_ARG(double, slow_turns) = 1.0;

  /// factor of cosines and sines for kYarn and kLongRope. Default: 1 + 0.1
  /// ln(factor) and sqrt(1 + ln(factor) / ln(original_context_length)), at
  /// least 1
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;

  /// whether YaRN rounds the ends of the interpolated range to whole pairs;
  /// gpt-oss does not. Default: true
  TORCH_ARG(bool, truncate) = true;

  /// rotate to the other side, by -p / theta^(2 i / dim), as in NanoChat.
  /// Tables of the caller are used as they are. Default: false
  TORCH_ARG(bool, reversed) = false;

  /// divisors of the dim / 2 frequencies in short sequences, for kLongRope.
  /// Default: none
  TORCH_ARG(std::vector<double>, short_factors) = {};

  /// divisors of the dim / 2 frequencies in long sequences, for kLongRope.
  /// Default: none
  TORCH_ARG(std::vector<double>, long_factors) = {};
};

/// Cosines and sines of the angles, instead of those computed from
/// `RotaryOptions`: for positions of several dimensions, or for a model that
/// contains its tables, like ONNX's RotaryEmbedding.
///
/// Example:
/// ```
/// functional::rotary_embedding(
///     query, RotaryTables(cos_cache, sin_cache).positions(position_ids));
/// ```
struct TORCH_ATTENTION_API RotaryTables {
  RotaryTables(torch::Tensor cos, torch::Tensor sin);

  /// cosines, floating-point: (T, pairs), or (B, T, pairs) for x (B, ..., T,
  /// D). The first 2 * pairs elements of a head are rotated. With `positions`:
  /// (N, pairs), for the positions 0 to N - 1.
  TORCH_ARG(torch::Tensor, cos);

  /// sines of the same angles, of the shape of `cos`.
  TORCH_ARG(torch::Tensor, sin);

  /// integer tensor (T), or (B, T) for x (B, ..., T, D): the row of each token
  /// in the tables. Default: the tables have one row per token
  TORCH_ARG(torch::Tensor, positions) = {};

  /// which two elements form a pair. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;
};

} // namespace torch_attention
