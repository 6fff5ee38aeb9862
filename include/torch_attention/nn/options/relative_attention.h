#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/rule_options.h>
#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace torch_attention {

/// Selects the vectors of the distances by which `RelativeAttention` multiplies
/// queries, or keys. Query t and key s have the distance s - t.
enum class RelativeKind {
  /// A learned vector for each distance; distances are clipped (Shaw et al.
  /// 2018): score = (q . k + q . E[clip(s - t)]) * scale.
  kLearned,
  /// Projected sines and cosines of the distance (Dai et al. 2019,
  /// "Transformer-XL"), with learned vectors u and v of each head:
  /// score = ((q + u) . k + (q + v) . (W_pos p[t - s])) * scale.
  kSinusoids,
  /// Learned vectors of the distances in rows and columns of an image of
  /// `height` x `width` tokens (Li et al. 2022, "MViTv2"; SAM):
  /// score = q . k * scale + q . Rh[row t - row s] + q . Rw[column t - column
  /// s].
  kRowsAndColumns,
  /// Learned embeddings P of the distances, which are projected like tokens to
  /// keys and queries (He et al. 2020, "DeBERTa"):
  /// score = (q . k + q . (W_key P[t - s]) + k . (W_query P[t - s])) * scale.
  kDisentangled,
};

/// Prints `learned`, `sinusoids`, `rows and columns` or `disentangled`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    RelativeKind kind);

/// Selects where the sine and the cosine of one frequency are in a vector.
enum class SinusoidOrder {
  /// sin, cos, sin, cos, ...: the conformers.
  kInterleaved,
  /// All sines, then all cosines: Transformer-XL, XLNet.
  kHalves,
};

/// Prints `interleaved` or `halves`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    SinusoidOrder order);

/// Options for `RelativeAttention`. The defaults are those of conformers.
///
/// Example, as in wav2vec2-BERT:
/// ```
/// RelativeAttention attention(RelativeAttentionOptions(1024, 1024, 16)
///                                 .kind(RelativeKind::kLearned)
///                                 .left(64)
///                                 .right(8));
/// ```
struct TORCH_ATTENTION_API RelativeAttentionOptions
    : RuleOptions<RelativeAttentionOptions> {
  RelativeAttentionOptions(int64_t d_in, int64_t d_out, int64_t num_heads);

  /// size of each input token; even with sinusoids, which have this size.
  TORCH_ARG(int64_t, d_in);

  /// size of each output token.
  TORCH_ARG(int64_t, d_out);

  /// number of query heads.
  TORCH_ARG(int64_t, num_heads);

  /// vectors of the distances. Default: RelativeKind::kSinusoids
  TORCH_ARG(RelativeKind, kind) = RelativeKind::kSinusoids;

  /// learned vectors: keys that are `left` or more tokens before the query
  /// share a vector. Default: 64
  TORCH_ARG(int64_t, left) = 64;

  /// learned vectors: keys that are `right` or more tokens after the query
  /// share a vector. Default: 8
  TORCH_ARG(int64_t, right) = 8;

  /// learned vectors: the first one is of the key `right` tokens after the
  /// query, and the last one of the key `left` tokens before it, as in SpeechT5
  /// and Granite Speech; otherwise the reverse. Default: false
  TORCH_ARG(bool, last_first) = false;

  /// sinusoids: order of sines and cosines. Default:
  /// SinusoidOrder::kInterleaved
  TORCH_ARG(SinusoidOrder, order) = SinusoidOrder::kInterleaved;

  /// rows and columns: number of rows of tokens in the image, or in the window
  /// of an image. Default: 14
  TORCH_ARG(int64_t, height) = 14;

  /// rows and columns: number of tokens in each row. Default: 14
  TORCH_ARG(int64_t, width) = 14;

  /// rows and columns: number of rows of the images that the learned vectors
  /// are for. Those of another height are interpolated between them, as in SAM.
  /// Default: height
  TORCH_ARG(std::optional<int64_t>, table_height) = std::nullopt;

  /// rows and columns: `table_height` for the tokens of a row. Default: width
  TORCH_ARG(std::optional<int64_t>, table_width) = std::nullopt;

  /// disentangled: without `buckets`, keys that are `max_distance` - 1 or more
  /// tokens before the query share an embedding, and keys that are
  /// `max_distance` or more after it. With `buckets`, the distance that falls
  /// into the last one. Default: 512
  TORCH_ARG(int64_t, max_distance) = 512;

  /// disentangled: number of embeddings for each direction. Those of distances
  /// above half of it grow with the logarithm of the distance, as in DeBERTa
  /// v2. Default: max_distance, an embedding for each distance
  TORCH_ARG(std::optional<int64_t>, buckets) = std::nullopt;

  /// disentangled: multiply queries with projected embeddings ("c2p").
  /// Default: true
  TORCH_ARG(bool, content_to_position) = true;

  /// disentangled: multiply keys with projected embeddings ("p2c"). Default:
  /// true
  TORCH_ARG(bool, position_to_content) = true;

  /// disentangled: project embeddings by `W_key` and `W_query`, and not by
  /// layers of their own, `W_pos_key` and `W_pos_query`. Default: true
  TORCH_ARG(bool, share_projections) = true;

  /// probability that an attention weight is dropped in training. Default: 0
  TORCH_ARG(double, dropout) = 0.0;

  /// add a bias to the query, key and value projections. Default: true
  TORCH_ARG(bool, qkv_bias) = true;

  /// add a bias to the query projection. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, query_bias) = std::nullopt;

  /// add a bias to the key projection. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, key_bias) = std::nullopt;

  /// add a bias to the value projection. Default: qkv_bias
  TORCH_ARG(std::optional<bool>, value_bias) = std::nullopt;

  /// add a bias to `out_proj`. Default: true
  TORCH_ARG(bool, out_bias) = true;

  /// number of key and value heads, a divisor of `num_heads`: consecutive
  /// query heads share one (grouped-query attention, Ainslie et al. 2023).
  /// Default: num_heads
  TORCH_ARG(std::optional<int64_t>, num_kv_heads) = std::nullopt;

  /// size of each head's query, key and value. Default: d_out / num_heads
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;

  /// all rules for scores and positions; each is also an option of
  /// `RuleOptions`. A softcap is refused. Default: only the scale, which is
  /// 1 / sqrt(head_dim * number of products) with disentangled attention
  TORCH_ARG(ScoreRule, rule) = {};

  /// with `chunk`: also see the tokens of this many chunks before the query's,
  /// as in Nemotron ASR Streaming and SeamlessM4T v2. Default: 0
  TORCH_ARG(int64_t, chunks_before) = 0;

  /// which kernel computes the attention. Default: Kernel::kAuto
  TORCH_ARG(Kernel, kernel) = Kernel::kAuto;
};

} // namespace torch_attention
