#pragma once

#include <check.h>
#include <nn/checks.h>

#include <torch/types.h>

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

inline void check_cache_dtype(const char* name, torch::Dtype dtype) {
  TORCH_ATTENTION_CHECK(
      c10::isFloatingType(dtype),
      "{}: expected a floating-point dtype, but got {}",
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
