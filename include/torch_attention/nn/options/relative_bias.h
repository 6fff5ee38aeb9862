#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <cstdint>

namespace torch_attention {

/// Options for `RelativeBias`.
///
/// Example, as in a decoder of T5:
/// ```
/// RelativeBias bias(RelativeBiasOptions(8).bidirectional(false));
/// ```
struct TORCH_ATTENTION_API RelativeBiasOptions {
  explicit RelativeBiasOptions(int64_t num_heads);

  /// number of query heads.
  TORCH_ARG(int64_t, num_heads);

  /// number of buckets of distances, each with one bias per head: at least 2,
  /// or at least 4 and even if `bidirectional`. Default: 32
  TORCH_ARG(int64_t, num_buckets) = 32;

  /// distances from this one on share the last bucket. More than half the
  /// buckets of one direction. Default: 128
  TORCH_ARG(int64_t, max_distance) = 128;

  /// use half of the buckets for keys after the query. Otherwise such keys
  /// share the bucket of distance 0. Default: true
  TORCH_ARG(bool, bidirectional) = true;
};

/// Options for `WindowBias`.
///
/// Example:
/// ```
/// WindowBias bias(WindowBiasOptions(3, 7, 7));
/// ```
struct TORCH_ATTENTION_API WindowBiasOptions {
  WindowBiasOptions(int64_t num_heads, int64_t height, int64_t width);

  /// number of query heads.
  TORCH_ARG(int64_t, num_heads);

  /// number of rows of tokens in a window.
  TORCH_ARG(int64_t, height);

  /// number of tokens in each row.
  TORCH_ARG(int64_t, width);
};

} // namespace torch_attention
