#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <limits>

namespace torch_attention::cpu {

/// Rows [t, t + rows) against keys [s, s + n). A row is a query of a head, or
/// of several interleaved heads (`Head`).
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

/// Queries [begin, end).
struct Queries {
  int64_t begin = 0;
  int64_t end = 0;
};

/// How a tile of scores is computed: skipped, full, or as a partial tile.
enum class Tile { kSkipped, kFull, kPartial };

/// The keys that the query of each row sees: [first(row), end(row)), both
/// growing with the row.
///
/// Positions and windows may be any 64-bit numbers. Here they are clamped to
/// [-T, S + 1], beyond which positions matter only to chunks and sinks, so that
/// nothing overflows.
struct Visibility {
  /// Query t sees none before `lower + t`, and none from `upper + t` on.
  int64_t lower = 0;
  int64_t upper = 0;
  /// The position of query 0 from which distances are counted. Farther from the
  /// keys it would change all scores of a query alike, which matters only with
  /// a sink.
  int64_t offset = 0;
  int64_t num_keys = 0;
  /// > 0: the size of chunks; a query sees no key of another chunk.
  int64_t chunk = 0;
  /// The unclamped position of query 0, for chunks.
  int64_t position = 0;
  /// The number of heads whose queries are the rows, interleaved.
  int64_t heads = 1;

  int64_t query(int64_t row) const {
    return heads == 1 ? row : row / heads;
  }

  int64_t first(int64_t row) const {
    const auto t = query(row);
    const auto begin = std::max<int64_t>(0, lower + t);
    return chunk > 0 ? std::max(begin, chunk_begin(t)) : begin;
  }

  int64_t end(int64_t row) const {
    const auto t = query(row);
    const auto end = std::clamp<int64_t>(upper + t, 0, num_keys);
    return chunk > 0 ? std::min(end, chunk_end(t)) : end;
  }

  /// Returns how a tile is computed, without mask and bias.
  Tile tile(const Range& range) const {
    const auto last = range.t_end() - 1;
    if (range.s_end() <= first(range.t) || range.s >= end(last)) {
      return Tile::kSkipped;
    }
    const bool full = range.s >= first(last) && range.s_end() <= end(range.t);
    return full ? Tile::kFull : Tile::kPartial;
  }

  /// Returns which of T queries of one head see some of the keys [s, s_end).
  Queries queries_of(int64_t T, int64_t s, int64_t s_end) const {
    Queries queries;
    queries.begin = first_query(0, T, [&](int64_t t) { return end(t) > s; });
    queries.end = first_query(
        queries.begin, T, [&](int64_t t) { return first(t) >= s_end; });
    return queries;
  }

 private:
  /// Returns the first t of [begin, end) from which on `holds(t)`, or `end`.
  template <typename Holds>
  static int64_t first_query(int64_t begin, int64_t end, const Holds& holds) {
    while (begin < end) {
      const auto middle = begin + (end - begin) / 2;
      if (holds(middle)) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }

  /// Returns the position of query t, at most the largest number, which is
  /// beyond the keys.
  int64_t position_of(int64_t t) const {
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    return position > kMost - t ? kMost : position + t;
  }

  /// Return where the chunk of query t begins and ends; there are no chunks
  /// before the first key.
  int64_t chunk_begin(int64_t t) const {
    const auto at = position_of(t);
    return at < 0 ? 0 : at - at % chunk;
  }

  int64_t chunk_end(int64_t t) const {
    if (position_of(t) < 0) {
      return 0;
    }
    const auto begin = chunk_begin(t);
    return begin >= num_keys || chunk >= num_keys - begin ? num_keys
                                                          : begin + chunk;
  }
};

/// Returns the visibility for T queries from position `offset` on, and S keys.
inline Visibility visibility_of(
    const ScoreRule& rule,
    int64_t T,
    int64_t S,
    int64_t offset) {
  // A rule that is added does not compile until it is decided whether it hides
  // keys here.
  const auto& [scale, softcap, causal, window, window_after, chunk] = rule;
  const auto clamped = [&](int64_t position) {
    return std::clamp(position, -T, S);
  };
  using Limits = std::numeric_limits<int64_t>;
  const auto before = window ? *window - 1 : 0;
  const auto first =
      offset < Limits::min() + before ? Limits::min() : offset - before;
  const auto after = causal ? 0 : window_after.value_or(-1);
  const auto last = after > 0 && offset > Limits::max() - after
      ? Limits::max()
      : offset + std::max<int64_t>(after, 0);
  Visibility v;
  v.lower = window ? clamped(first) : -T;
  v.offset = clamped(offset);
  v.upper = after >= 0 ? clamped(last) + 1 : S;
  v.num_keys = S;
  v.chunk = chunk.value_or(0);
  v.position = offset;
  return v;
}

/// Returns the visibility for sequence b.
template <typename X>
Visibility visibility_of(const AttentionArguments<X>& a, int64_t b) {
  const auto offset = a.query_offsets != nullptr ? a.query_offsets[b]
                                                 : a.num_keys - a.num_queries;
  auto v = visibility_of(a.rule, a.num_queries, a.num_keys, offset);
  if (a.sinks != nullptr) {
    // Leaves room to add to it without overflow.
    constexpr auto kFar = int64_t{1} << 62;
    v.offset = std::clamp(offset, -kFar, kFar);
  }
  if (a.key_lengths != nullptr) {
    v.num_keys = std::clamp<int64_t>(a.key_lengths[b], 0, a.num_keys);
  }
  return v;
}

} // namespace torch_attention::cpu
