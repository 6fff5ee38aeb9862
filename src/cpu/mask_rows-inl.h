// The rows of a mask or bias, each read once, as bits of units of keys.

#if defined(TORCH_ATTENTION_CPU_MASK_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_MASK_ROWS_INL_H_
#undef TORCH_ATTENTION_CPU_MASK_ROWS_INL_H_
#else
#define TORCH_ATTENTION_CPU_MASK_ROWS_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/conversion-inl.h>
#include <cpu/mask_map.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The different rows of a mask or bias (B, H, T, S): broadcast rows count
/// once.
template <typename Y>
struct ScoreRows {
  Scores<const Y> x;
  int64_t num_keys = 0;
  int64_t batches = 0;
  int64_t heads = 0;
  int64_t queries = 0;

  ScoreRows() = default;

  template <typename X>
  ScoreRows(const AttentionArguments<X>& a, const Scores<const Y>& scores)
      : x(scores), num_keys(a.num_keys) {
    if (x.data != nullptr) {
      batches = x.batch != 0 ? a.batch_size : 1;
      heads = x.head != 0 ? a.num_heads : 1;
      queries = x.query != 0 ? a.num_queries : 1;
    }
  }

  int64_t count() const {
    return batches * heads * queries;
  }

  /// The distances in rows.
  UnitBits distances() const {
    UnitBits bits;
    bits.batch = batches > 1 ? heads * queries : 0;
    bits.head = heads > 1 ? queries : 0;
    bits.query = queries > 1 ? 1 : 0;
    return bits;
  }

  const Y* at(int64_t row) const {
    return x.data + row / (heads * queries) * x.batch +
        row / queries % heads * x.head + row % queries * x.query;
  }

  /// Calls `fn(row, numbers)` for `n` rows, with contiguous keys.
  template <typename Fn>
  void for_rows(int64_t first, int64_t n, const Fn& fn) const {
    if (x.key == 1) {
      for (auto row = first; row < first + n; ++row) {
        fn(row, at(row));
      }
      return;
    }
    // Keys outside: a key's rows may be neighbours in memory.
    const auto size = static_cast<size_t>(n * num_keys) * sizeof(Y);
    auto* copies = reinterpret_cast<Y*>(thread_memory(size));
    constexpr int64_t kTogether = 16;
    for (int64_t r = 0; r < n; r += kTogether) {
      const auto together = std::min(kTogether, n - r);
      const Y* from[kTogether];
      for (int64_t i = 0; i < together; ++i) {
        from[i] = at(first + r + i);
      }
      for (int64_t s = 0; s < num_keys; ++s) {
        for (int64_t i = 0; i < together; ++i) {
          copies[(r + i) * num_keys + s] = from[i][s * x.key];
        }
      }
    }
    for (int64_t r = 0; r < n; ++r) {
      fn(first + r, static_cast<const Y*>(copies + r * num_keys));
    }
  }
};

/// The bits of a row, as `UnitBits` has them.
struct RowBits {
  uint64_t* seen = nullptr;
  uint64_t* changed = nullptr;
  uint64_t* hidden = nullptr;

  RowBits row(int64_t i, int64_t words) const {
    return {
        seen + i * words,
        changed + i * words,
        hidden + i * UnitBits::hidden_words(words)};
  }
};

/// Writes the bits of a row of n keys. `hidden_from(s, n)` returns which of n
/// keys from s on, at most 64, are hidden. Counts no other key as changed.
template <typename HiddenFrom>
HWY_INLINE void write_bits(
    int64_t n,
    const HiddenFrom& hidden_from,
    const RowBits& to) {
  for (int64_t first = 0; first < n; first += kWordKeys) {
    const auto end = std::min(n, first + kWordKeys);
    uint64_t seen = 0;
    uint64_t hidden = 0;
    for (auto s = first; s < end; s += 64) {
      const auto count = std::min<int64_t>(64, end - s);
      const auto are = ~uint64_t{0} >> (64 - count);
      const auto bits = hidden_from(s, count) & are;
      const auto unit = (s - first) / kUnitKeys;
      hidden |= units_of(bits) << unit;
      seen |= units_of(~bits & are) << unit;
      to.hidden[s / 64] = bits;
    }
    to.seen[first / kWordKeys] = seen;
    to.changed[first / kWordKeys] = hidden;
  }
  // `UnitBits::hidden_from` reads it with the word before, but uses none of it.
  to.hidden[(n + 63) / 64] = 0;
}

/// Writes the bits of a row of a mask.
HWY_NOINLINE inline void read_row(
    const bool* mask,
    int64_t n,
    const RowBits& to) {
  write_bits(
      n,
      [=](int64_t s, int64_t count) { return bits_of(mask + s, count); },
      to);
}

/// Returns the lanes of a vector's mask, at most 16, as bits.
template <typename D, typename M>
HWY_INLINE uint64_t bits_of_lanes(D d, M mask) {
  uint8_t stored[8] = {};
  hn::StoreMaskBits(d, mask, stored);
  constexpr auto N = hn::MaxLanes(d);
  return N > 8 ? stored[0] | uint64_t{stored[1]} << 8
               : stored[0] & ((1U << N) - 1);
}

/// Writes the bits of a row of a bias, whose numbers up to `limit` hide.
/// Returns whether all others are 0.
template <typename T, typename Y>
HWY_NOINLINE bool read_row(
    const Y* bias,
    int64_t n,
    T limit,
    const RowBits& to) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  static_assert(kUnitKeys % N == 0);
  const auto zero = hn::Zero(d);
  const auto low = hn::Set(d, limit);
  auto other = hn::Ne(zero, zero);
  bool has_other = false;
  write_bits(
      n,
      [&](int64_t first, int64_t count) {
        const auto* x = bias + first;
        uint64_t bits = 0;
        int64_t i = 0;
        for (; i + N <= count; i += N) {
          const auto y = load(d, x + i);
          const auto hides = hn::Le(y, low);
          other = hn::Or(other, hn::Not(hn::Or(hides, hn::Eq(y, zero))));
          bits |= bits_of_lanes(d, hides) << i;
        }
        for (; i < count; ++i) {
          const auto y = get(x + i);
          has_other = has_other || !(y <= limit || y == 0);
          bits |= uint64_t{y <= limit} << i;
        }
        return bits;
      },
      to);
  if (!has_other && hn::AllFalse(d, other)) {
    return true;
  }
  for (int64_t s = 0; s < n; s += kUnitKeys) {
    bool is_changed = false;
    for_lanes<T>(std::min(n - s, kUnitKeys), [&](int64_t i, auto tag) {
      const auto y = load(tag, bias + s + i);
      is_changed |= !hn::AllTrue(tag, hn::Eq(y, hn::Zero(tag)));
    });
    const auto unit = s / kUnitKeys;
    to.changed[unit / 64] |= uint64_t{is_changed} << (unit % 64);
  }
  return false;
}

/// Returns the largest number of a row; infinity if it has NaN.
template <typename T, typename Y>
HWY_NOINLINE T highest_of(const Y* bias, int64_t n) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  auto highest = hn::Set(d, -kInfinity<T>);
  auto is_nan = hn::Ne(highest, highest);
  int64_t s = 0;
  for (; s + N <= n; s += N) {
    const auto x = load(d, bias + s);
    is_nan = hn::Or(is_nan, hn::Ne(x, x));
    highest = hn::Max(highest, x);
  }
  bool has_nan = !hn::AllFalse(d, is_nan);
  auto result = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; s < n; ++s) {
    const auto x = get(bias + s);
    has_nan = has_nan || x != x;
    result = std::max(result, x);
  }
  return has_nan ? kInfinity<T> : result;
}

/// Returns whether a row has finite numbers up to `limit`.
template <typename T, typename Y>
bool has_low(const Y* bias, int64_t n, T limit) {
  for (int64_t s = 0; s < n; ++s) {
    const auto x = get(bias + s);
    if (x <= limit && x > -kInfinity<T>) {
      return true;
    }
  }
  return false;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
