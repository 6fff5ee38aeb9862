#pragma once

#include <check.h>
#include <kernels/int8_rows.h>
#include <nn/checks.h>

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <string>

/// Checks that caches share; options are a `KVCacheOptions` or a
/// `BlockCacheOptions`. `name` is the class in messages.
namespace torch_attention::checks {

/// The size of a value of a cache with `options`.
template <typename Options>
int64_t value_dim(const Options& options) {
  return options.value_dim().value_or(options.head_dim());
}

/// Return how many elements the stored rows of keys and values have.
template <typename Options>
int64_t stored_key_size(const Options& options) {
  return kernels::stored_size(options.dtype(), options.head_dim());
}
template <typename Options>
int64_t stored_value_size(const Options& options) {
  return kernels::stored_size(options.dtype(), value_dim(options));
}

template <typename Options>
void check_sizes_of_rows(const char* name, const Options& options) {
  check_positive(name, "num_kv_heads", options.num_kv_heads());
  check_positive(name, "head_dim", options.head_dim());
  check_positive(name, "value_dim", value_dim(options));
  TORCH_ATTENTION_CHECK(
      !options.values_in_keys() || value_dim(options) <= options.head_dim(),
      "{}: expected value_dim <= head_dim with values_in_keys, but got {} > {}",
      name,
      value_dim(options),
      options.head_dim());
}

/// Checks which tokens the cache keeps.
template <typename Options>
void check_kept(const char* name, const Options& options) {
  if (options.window()) {
    check_positive(name, "window", *options.window());
  }
  if (options.chunk()) {
    check_positive(name, "chunk", *options.chunk());
  }
  TORCH_ATTENTION_CHECK(
      !options.window() || !options.chunk(),
      "{}: expected a window or a chunk, but got window = {} and chunk = {}",
      name,
      options.window().value_or(0),
      options.chunk().value_or(0));
}

/// Returns the first token that tokens from position `length` on still read.
template <typename Options>
int64_t first_needed(const Options& options, int64_t length) {
  if (options.chunk()) {
    return length - length % *options.chunk();
  }
  return options.window()
      ? std::max<int64_t>(0, length - (*options.window() - 1))
      : 0;
}

/// Returns the smallest length > 0 to which a sequence may be truncated whose
/// first `dropped` tokens are gone.
template <typename Options>
int64_t least_length(const Options& options, int64_t dropped) {
  if (dropped == 0) {
    return 1;
  }
  if (options.chunk()) {
    const auto chunk = *options.chunk();
    return (dropped + chunk - 1) / chunk * chunk;
  }
  return dropped + options.window().value_or(1) - 1;
}

/// Checks that sequence `sequence`, whose first `dropped` tokens are gone, may
/// be truncated to `length` tokens, fewer than it has.
template <typename Options>
void check_truncation(
    const char* name,
    const Options& options,
    int64_t sequence,
    int64_t dropped,
    int64_t length) {
  const auto least = least_length(options, dropped);
  TORCH_ATTENTION_CHECK(
      length == 0 || length >= least,
      "{}: expected to truncate sequence {} to 0 or at least {} tokens, since "
      "the first {} are dropped ({}), but got {}",
      name,
      sequence,
      least,
      dropped,
      options.chunk() ? "chunk" : "window",
      length);
}

inline void check_cache_dtype(const char* name, torch::Dtype dtype) {
  TORCH_ATTENTION_CHECK(
      c10::isFloatingType(dtype) || dtype == torch::kInt8,
      "{}: expected a floating-point dtype or torch::kInt8, but got {}",
      name,
      dtype);
}

/// Checks keys or values (B, num_kv_heads, T, size) that are to be appended;
/// `sequences` names B.
template <typename Options>
void check_new_part(
    const char* name,
    const char* what,
    const char* sequences,
    const torch::Tensor& rows,
    int64_t B,
    int64_t size,
    const Options& options) {
  TORCH_ATTENTION_CHECK(rows.defined(), "{}: the {} are undefined", name, what);
  TORCH_ATTENTION_CHECK(
      rows.dim() == 4 && rows.size(0) == B &&
          rows.size(1) == options.num_kv_heads() && rows.size(3) == size,
      "{}: expected {} of shape ({}, num_kv_heads, T, {}) = ({}, {}, T, {}), "
      "but got {}",
      name,
      what,
      sequences,
      what == std::string("keys") ? "head_dim" : "value_dim",
      B,
      options.num_kv_heads(),
      size,
      rows.sizes());
  TORCH_ATTENTION_CHECK(
      rows.is_floating_point() && rows.device() == options.device(),
      "{}: expected floating-point {} on {}, where the cache is, but got {} on "
      "{}",
      name,
      what,
      options.device(),
      rows.scalar_type(),
      rows.device());
}

/// Checks keys (B, num_kv_heads, T, head_dim) that are to be appended, and
/// their values, which are undefined with `values_in_keys`.
template <typename Options>
void check_new_rows(
    const char* name,
    const char* sequences,
    const torch::Tensor& keys,
    const torch::Tensor& values,
    int64_t B,
    const Options& options) {
  check_new_part(name, "keys", sequences, keys, B, options.head_dim(), options);
  TORCH_ATTENTION_CHECK(
      !options.values_in_keys() || !values.defined(),
      "{}: expected keys alone, which have the values in them "
      "(values_in_keys), but got values too",
      name);
  if (options.values_in_keys()) {
    return;
  }
  check_new_part(
      name, "values", sequences, values, B, value_dim(options), options);
  TORCH_ATTENTION_CHECK(
      values.size(2) == keys.size(2),
      "{}: expected as many keys as values, but got keys {}, values {}",
      name,
      keys.sizes(),
      values.sizes());
}

} // namespace torch_attention::checks
