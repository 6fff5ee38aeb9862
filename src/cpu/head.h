#pragma once

#include <cpu/attention.h>
#include <cpu/mask_map.h>
#include <cpu/visibility.h>

#include <algorithm>
#include <cstdint>

namespace torch_attention::cpu {

/// The rule of one head's scores, but for the keys that `Visibility` hides.
template <typename T>
struct HeadRule {
  T scale = 1;
  /// 0: none
  double softcap = 0;
  /// ALiBi slopes of this head and the heads after it; null: none
  const T* alibi_slopes = nullptr;
  /// Whether scores are products times `scale`, before biases.
  bool linear = true;
  /// Whether scores get a bias by position.
  bool adds = false;
};

template <typename X>
HeadRule<Compute<X>> head_rule(const AttentionArguments<X>& a, int64_t h) {
  using T = Compute<X>;
  HeadRule<T> rule;
  rule.scale = static_cast<T>(a.rule.factor(a.head_dim));
  rule.softcap = a.rule.softcap.value_or(0);
  rule.alibi_slopes = a.alibi_slopes != nullptr ? a.alibi_slopes + h : nullptr;
  rule.linear = a.rule.is_linear();
  rule.adds = rule.alibi_slopes != nullptr;
  return rule;
}

template <typename X>
X* at(const Heads<X>& x, int64_t b, int64_t h) {
  return x.data + b * x.strides.batch + h * x.strides.head;
}

template <typename X>
X* at(const Scores<X>& x, int64_t b, int64_t h) {
  return x.data == nullptr ? nullptr : x.data + b * x.batch + h * x.head;
}

/// The keys or values of one head, in one piece or in blocks.
template <typename X>
struct Tokens {
  const X* data = nullptr;
  int64_t row = 0; // distance
  const void* const* blocks = nullptr; // of the sequence; null: in one piece
  int64_t head = 0; // distance from the beginning of a block
  int64_t block_size = 0;

  /// Returns token s. The tokens after it, up to the next multiple of
  /// kBlockTokens, follow in memory.
  const X* at(int64_t s) const {
    if (blocks == nullptr) {
      return data + s * row;
    }
    const auto* block = static_cast<const X*>(blocks[s / block_size]);
    return block + head + s % block_size * row;
  }

  /// Returns how many elements after token s token `next` is, for a prefetch.
  int64_t distance(int64_t s, int64_t next) const {
    if (blocks == nullptr) {
      return (next - s) * row;
    }
    const auto address = [&](int64_t token) {
      return reinterpret_cast<std::intptr_t>(at(token));
    };
    return static_cast<int64_t>(address(next) - address(s)) /
        static_cast<int64_t>(sizeof(X));
  }

  /// Calls `fn(tokens, first, n)` for the pieces in memory of tokens
  /// [s, s_end): each has the n tokens from `first` on.
  template <typename Fn>
  void for_each_piece(int64_t s, int64_t s_end, const Fn& fn) const {
    while (s < s_end) {
      const auto end = blocks == nullptr
          ? s_end
          : std::min(s_end, (s / block_size + 1) * block_size);
      fn(at(s), s, end - s);
      s = end;
    }
  }
};

/// Returns head g of sequence b of x (B, G, S, ...), whose blocks are `table`,
/// or null.
template <typename X>
Tokens<X> tokens_of(
    const Heads<const X>& x,
    const void* const* table,
    const BlockTable& blocks,
    int64_t b,
    int64_t g) {
  if (table == nullptr) {
    return {at(x, b, g), x.strides.token};
  }
  return {
      nullptr,
      x.strides.token,
      table + b * blocks.row,
      g * x.strides.head,
      blocks.size};
}

/// Return the keys (S, D) and values (S, E) of head g of sequence b.
template <typename X>
Tokens<X> keys_of(const AttentionArguments<X>& a, int64_t b, int64_t g) {
  return tokens_of(a.key, a.blocks.keys, a.blocks, b, g);
}
template <typename X>
Tokens<X> values_of(const AttentionArguments<X>& a, int64_t b, int64_t g) {
  return tokens_of(a.value, a.blocks.values, a.blocks, b, g);
}

/// Returns where the step from key s on ends: at a multiple of `keys`, which is
/// one of kBlockTokens, or at `end`. So the numbers that are added up together
/// do not depend on where a window begins.
inline int64_t step_end(int64_t s, int64_t keys, int64_t end) {
  return std::min((s / keys + 1) * keys, end);
}

/// Returns the key at which the steps of a row begin. What vectors of keys add
/// up does not depend on where a window begins, either.
inline int64_t first_step(const Visibility& visibility, int64_t row) {
  constexpr int64_t kMostLanes = 16;
  return visibility.first(row) / kMostLanes * kMostLanes;
}

/// Tokens of one head, or of interleaved heads: row r is token r / heads of
/// head r % heads.
template <typename X>
struct Rows {
  X* data;
  int64_t token; // distance
  int64_t head = 0; // distance
  int64_t heads = 1;

  X* at(int64_t row) const {
    return heads == 1 ? data + row * token
                      : data + row / heads * token + row % heads * head;
  }
};

/// One query head with its tensors and its rule. Or several interleaved heads,
/// as in `Rows`, that read the same keys; `h`, `index` and the pointers are
/// then of the first.
template <typename X>
struct Head {
  int64_t b;
  int64_t h;
  /// b * H + h
  int64_t index;
  /// The index among the heads that dropout counts.
  int64_t dropout_index;
  const X* query; // (T, D)
  Tokens<X> key; // (S, D)
  Tokens<X> value; // (S, E)
  const X* bias; // (T, S) or null, like `wide_bias` and `mask`
  const Compute<X>* wide_bias;
  const bool* mask;
  Visibility visibility;
  HeadRule<Compute<X>> rule;
  /// null: none
  const MaskMap<Compute<X>>* map = nullptr;

  template <typename Y>
  Rows<Y> rows_of(const Heads<Y>& x) const {
    return {at(x, b, h), x.strides.token, x.strides.head, heads()};
  }

  int64_t heads() const {
    return visibility.heads;
  }

  /// Return the head and the query of a row; the head is counted from `h`.
  int64_t head_of(int64_t row) const {
    return heads() == 1 ? 0 : row % heads();
  }
  int64_t query_of(int64_t row) const {
    return visibility.query(row);
  }

  /// Collects the map's bits for the rows and keys of `range`.
  void collect(const Range& range, TileMap& to) const {
    to.collect(map, b, h, heads(), range);
  }

  /// Returns the number up to which the bias hides keys from a row.
  Compute<X> low_limit(int64_t row) const {
    return map->limit(b, h + head_of(row), query_of(row));
  }
  bool has_low_limits() const {
    return map != nullptr && map->limits != nullptr;
  }

  /// Returns the index of a row in (B, H, T).
  int64_t row_index(int64_t row, int64_t num_queries) const {
    return (index + head_of(row)) * num_queries + query_of(row);
  }

  /// Returns where a row begins in (T, S), counted from the first head.
  template <typename Y>
  int64_t offset(const Scores<Y>& x, int64_t row) const {
    return query_of(row) * x.query + head_of(row) * x.head;
  }
};

/// Returns head h, interleaved with the `heads - 1` after it.
template <typename X>
Head<X> head_at(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    int64_t heads = 1) {
  const auto g = h / (a.num_heads / a.num_kv_heads);
  auto visibility = visibility_of(a, b);
  visibility.heads = heads;
  return {
      b,
      h,
      b * a.num_heads + h,
      b * std::max(a.num_heads, a.dropout_num_heads) + a.dropout_first_head + h,
      at(a.query, b, h),
      keys_of(a, b, g),
      values_of(a, b, g),
      at(a.bias, b, h),
      at(a.wide_bias, b, h),
      at(a.mask, b, h),
      visibility,
      head_rule(a, h)};
}

} // namespace torch_attention::cpu
