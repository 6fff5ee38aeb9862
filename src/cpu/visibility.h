#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <limits>

namespace torch_attention::cpu {

/// Queries [t, t + rows) of a head against keys [s, s + n).
struct Range {
  int64_t t = 0;
  int64_t rows = 0;
  int64_t s = 0;
  int64_t n = 0;

  int64_t t_end() const {
    return t + rows;
  }

  int64_t s_end() const {
    return s + n;
  }
};

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

  /// Without mask and bias.
  Tile tile(const Range& range) const {
    const auto last = range.t_end() - 1;
    if (range.s_end() <= first(range.t) || range.s >= end(last)) {
      return Tile::kSkipped;
    }
    const bool full = range.s >= first(last) && range.s_end() <= end(range.t);
    return full ? Tile::kFull : Tile::kCut;
  }
};

/// For T queries from position `offset` on, and S keys.
inline Visibility visibility_of(
    const ScoreRule& rule,
    int64_t T,
    int64_t S,
    int64_t offset) {
  const auto clamped = [&](int64_t position) {
    return std::clamp(position, -T, S);
  };
  constexpr auto kLeast = std::numeric_limits<int64_t>::min();
  const auto before = rule.window > 0 ? rule.window - 1 : 0;
  const auto first = offset < kLeast + before ? kLeast : offset - before;
  Visibility v;
  v.lower = rule.window > 0 ? clamped(first) : -T;
  v.offset = clamped(offset);
  v.upper = rule.causal ? v.offset + 1 : S;
  v.num_keys = S;
  return v;
}

/// For sequence b.
template <typename X>
Visibility visibility_of(const AttentionArguments<X>& a, int64_t b) {
  const auto offset = a.query_offsets != nullptr ? a.query_offsets[b]
                                                 : a.num_keys - a.num_queries;
  auto v = visibility_of(a.rule, a.num_queries, a.num_keys, offset);
  if (a.key_lengths != nullptr) {
    v.num_keys = std::clamp<int64_t>(a.key_lengths[b], 0, a.num_keys);
  }
  return v;
}

} // namespace torch_attention::cpu
