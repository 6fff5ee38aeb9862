#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <limits>

namespace torch_attention::cpu {

/// How a tile of scores is computed.
enum class Tile { kSkipped, kFull, kCut };

/// The keys that each query sees: [first(t), end(t)), both growing with t.
///
/// Positions and windows may be any 64-bit numbers. Here all are between -T and
/// S + 1, beyond which they make no difference, so that nothing overflows.
struct Visibility {
  /// Query t sees none before `lower + t`, and none from `upper + t` on.
  int64_t lower = 0;
  int64_t upper = 0;
  /// The position of query 0 from which distances are counted. Farther from the
  /// keys it would change all scores of a query alike.
  int64_t offset = 0;
  int64_t num_keys = 0;

  int64_t first(int64_t t) const {
    return std::max<int64_t>(0, lower + t);
  }

  int64_t end(int64_t t) const {
    return std::clamp<int64_t>(upper + t, 0, num_keys);
  }

  /// Queries [t, t_end) against keys [s, s_end), without mask and bias.
  Tile tile(int64_t t, int64_t t_end, int64_t s, int64_t s_end) const {
    if (s_end <= first(t) || s >= end(t_end - 1)) {
      return Tile::kSkipped;
    }
    const bool full = s >= first(t_end - 1) && s_end <= end(t);
    return full ? Tile::kFull : Tile::kCut;
  }
};

template <typename X>
Visibility visibility_of(const AttentionArguments<X>& a, int64_t b) {
  const auto offset = a.query_offsets != nullptr ? a.query_offsets[b]
                                                 : a.num_keys - a.num_queries;
  const auto clamped = [&](int64_t position) {
    return std::clamp(position, -a.num_queries, a.num_keys);
  };
  constexpr auto kLeast = std::numeric_limits<int64_t>::min();
  const auto before = a.window > 0 ? a.window - 1 : 0;
  const auto first = offset < kLeast + before ? kLeast : offset - before;
  Visibility v;
  v.lower = a.window > 0 ? clamped(first) : -a.num_queries;
  v.offset = clamped(offset);
  v.upper = a.causal ? v.offset + 1 : a.num_keys;
  v.num_keys = a.key_lengths != nullptr
      ? std::clamp<int64_t>(a.key_lengths[b], 0, a.num_keys)
      : a.num_keys;
  return v;
}

/// Whether something is added to scores, or hides them, one by one.
template <typename X>
bool adds_to_scores(const AttentionArguments<X>& a) {
  return a.bias.data != nullptr || a.wide_bias.data != nullptr ||
      a.mask.data != nullptr;
}

/// Where one query head finds what it reads.
template <typename X>
struct Head {
  const X* query;
  const X* key;
  const X* value;
  const X* bias;
  const Compute<X>* wide_bias;
  const bool* mask;
  Visibility visibility;
  /// 0: none
  Compute<X> alibi_slope;
  /// b * H + h
  int64_t index;
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
      at(a.query, b, h),
      at(a.key, b, g),
      at(a.value, b, g),
      at(a.bias, b, h),
      at(a.wide_bias, b, h),
      at(a.mask, b, h),
      visibility_of(a, b),
      a.alibi_slopes != nullptr ? a.alibi_slopes[h] : Compute<X>(0),
      b * a.num_heads + h};
}

} // namespace torch_attention::cpu
