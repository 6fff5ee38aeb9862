#pragma once

#include <cpu/attention.h>
#include <cpu/visibility.h>

namespace torch_attention::cpu {

/// The rule of one head's scores, but for the keys that `Visibility` hides.
template <typename T>
struct HeadRule {
  T scale = 1;
  double softcap = 0;
  /// Scores lose it for each position between query and key.
  T alibi_slope = 0;
  /// As `ScoreRule` has them, for this head.
  bool bends = false;
  bool adds = false;
};

template <typename X>
HeadRule<Compute<X>> head_rule(const AttentionArguments<X>& a, int64_t h) {
  using T = Compute<X>;
  // What hides keys is in `Visibility`.
  const auto& [scale, softcap, causal, window, window_after, chunk] = a.rule;
  HeadRule<T> rule;
  rule.scale = static_cast<T>(a.rule.factor(a.head_dim));
  rule.softcap = softcap;
  rule.alibi_slope = a.alibi_slopes != nullptr ? a.alibi_slopes[h] : T(0);
  rule.bends = a.rule.bends();
  rule.adds = a.rule.adds() || rule.alibi_slope != 0;
  return rule;
}

/// One query head: what it reads, and what becomes of its scores.
template <typename X>
struct Head {
  int64_t b;
  int64_t h;
  /// b * H + h
  int64_t index;
  const X* query; // (T, D)
  const X* key; // (S, D)
  const X* value; // (S, E)
  const X* bias; // (T, S) or null, as the next two
  const Compute<X>* wide_bias;
  const bool* mask;
  Visibility visibility;
  HeadRule<Compute<X>> rule;
};

template <typename X>
X* at(const Heads<X>& x, int64_t b, int64_t h) {
  return x.data + b * x.strides.batch + h * x.strides.head;
}

template <typename X>
const X* at(const Scores<X>& x, int64_t b, int64_t h) {
  return x.data == nullptr ? nullptr : x.data + b * x.batch + h * x.head;
}

template <typename X>
Head<X> head_at(const AttentionArguments<X>& a, int64_t b, int64_t h) {
  const auto g = h / (a.num_heads / a.num_kv_heads);
  return {
      b,
      h,
      b * a.num_heads + h,
      at(a.query, b, h),
      at(a.key, b, g),
      at(a.value, b, g),
      at(a.bias, b, h),
      at(a.wide_bias, b, h),
      at(a.mask, b, h),
      visibility_of(a, b),
      head_rule(a, h)};
}

} // namespace torch_attention::cpu
