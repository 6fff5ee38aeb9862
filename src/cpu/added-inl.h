// Adds bias and mask to a tile of scores: -inf where they hide keys.

#if defined(TORCH_ATTENTION_CPU_ADDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_ADDED_INL_H_
#undef TORCH_ATTENTION_CPU_ADDED_INL_H_
#else
#define TORCH_ATTENTION_CPU_ADDED_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/packing-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Returns whether there is a bias or a mask.
template <typename X>
bool has_bias_or_mask(const AttentionArguments<X>& a) {
  return a.bias.data != nullptr || a.wide_bias.data != nullptr ||
      a.mask.data != nullptr || a.mask_tiles.defined();
}

/// The number of keys in a tile of scores.
constexpr int64_t kKeyBlock = 64;

/// The numbers that bias and mask add to a tile: -inf where they hide keys.
template <typename T>
struct Added {
  /// (keys, width), or (keys) if all rows have the same; null: nothing is added
  const T* data = nullptr;
  bool per_row = false;
  bool hides_all = false;

  template <int kVectors>
  HWY_INLINE Vector<T> at(int64_t key, int vector) const {
    const Tag<T> d;
    return per_row ? load(d, data + (key * kVectors + vector) * kLanes<T>)
                   : hn::Set(d, data[key]);
  }
};

/// One bit for each key, as many as a lane of scores has bits.
template <typename T>
using KeyBits = hn::TFromD<hn::RebindToUnsigned<Tag<T>>>;

template <typename T>
constexpr int64_t kBitsPerLane = sizeof(T) * 8;

/// The number of `KeyBits` for n keys.
template <typename T>
constexpr int64_t key_words(int64_t n) {
  return (n + kBitsPerLane<T> - 1) / kBitsPerLane<T>;
}

/// The memory for the bias and mask of a tile.
template <typename T>
struct AddedMemory {
  int64_t keys = kKeyBlock; // the most of a tile
  T* rows = nullptr; // (width, keys)
  T* tile = nullptr; // (keys, width)
  T* limits = nullptr; // (width)
  KeyBits<T>* hidden = nullptr; // (key_words(keys), width)

  AddedMemory() = default;

  AddedMemory(Parts& parts, int64_t most_keys, int64_t width)
      : keys(most_keys),
        rows(parts.take<T>(width * keys)),
        tile(parts.take<T>(keys * width)),
        limits(parts.take<T>(width)),
        hidden(parts.take<KeyBits<T>>(key_words<T>(keys) * width)) {}
};

/// Returns the bytes of a mask. A tensor of bool may be a view of bytes, of
/// which all but 0 hide; the compiler takes those of `bool` for 0 and 1.
HWY_INLINE const uint8_t* bytes_of(const bool* mask) {
  return reinterpret_cast<const uint8_t*>(mask);
}

/// Returns bits that are set where n bytes are not 0, at most 64.
HWY_INLINE uint64_t bits_of(const bool* mask, int64_t n) {
  const hn::CappedTag<uint8_t, 32> d;
  constexpr auto N = static_cast<int64_t>(hn::MaxLanes(d));
  const auto* bytes = bytes_of(mask);
  uint64_t bits = 0;
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    uint8_t stored[8] = {};
    const auto x = hn::LoadU(d, bytes + i);
    hn::StoreMaskBits(d, hn::Ne(x, hn::Zero(d)), stored);
    // Loads as many bytes as were stored, so that the processor forwards them.
    std::conditional_t<N == 32, uint32_t, uint16_t> some = 0;
    static_assert(sizeof(some) * 8 == N);
    std::memcpy(&some, stored, sizeof(some));
    bits |= uint64_t{some} << i;
  }
  for (; i < n; ++i) {
    bits |= uint64_t{bytes[i] != 0} << i;
  }
  return bits;
}

/// Returns which of 64 keys from s on the mask's tiles hide from a row of the
/// head.
template <typename X>
uint64_t hidden_by_tiles(const Head<X>& head, int64_t row, int64_t s) {
  return head.map == nullptr
      ? 0
      : head.map->hidden_by_tiles(
            head.b, head.h + head.head_of(row), head.query_of(row), s);
}

/// Returns which of n keys from s on, at most 64, mask and bias hide from a row
/// of the head. They must do nothing else.
template <typename X>
HWY_INLINE uint64_t hidden_keys(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t row,
    int64_t s,
    int64_t n) {
  const auto are = ~uint64_t{0} >> (64 - n);
  if (head.map != nullptr && head.map->only_hides) {
    const auto bits = head.map->hidden_from(
        head.b, head.h + head.head_of(row), head.query_of(row), s);
    return bits & are;
  }
  const auto bits = bits_of(head.mask + head.offset(a.mask, row) + s, n);
  return bits | (hidden_by_tiles(head, row, s) & are);
}

/// Writes the keys that are hidden from each row of a tile as bits. Returns
/// their number.
template <typename X, typename T = Compute<X>>
int64_t gather_hidden(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    int64_t width,
    KeyBits<T>* hidden) {
  int64_t count = 0;
  for (int64_t r = 0; r < width; ++r) {
    auto* word = hidden + r;
    for (int64_t i = 0; i < range.n; i += kBitsPerLane<T>) {
      const auto n = std::min(range.n - i, kBitsPerLane<T>);
      const auto bits = r < range.rows
          ? hidden_keys(a, head, range.t + r, range.s + i, n)
          : 0;
      *word = static_cast<KeyBits<T>>(bits);
      word += width;
      count += static_cast<int64_t>(hwy::PopCount(bits));
    }
  }
  return count;
}

/// Writes -inf to a tile (n, width) where bits are set, and 0 elsewhere.
template <typename T>
HWY_NOINLINE void spread_hidden(
    const KeyBits<T>* hidden,
    int64_t n,
    int64_t width,
    T* tile) {
  const Tag<T> d;
  const hn::RebindToUnsigned<Tag<T>> du;
  const auto infinity = hn::Set(d, -kInfinity<T>);
  for (int64_t first = 0; first < n; first += kBitsPerLane<T>) {
    const auto keys = std::min(n - first, kBitsPerLane<T>);
    for (int64_t r = 0; r < width; r += kLanes<T>) {
      const auto bits = hn::LoadU(du, hidden + r);
      auto key = hn::Set(du, KeyBits<T>{1});
      auto* to = tile + first * width + r;
      for (int64_t i = 0; i < keys; ++i) {
        const auto hides = hn::RebindMask(d, hn::TestBit(bits, key));
        store(hn::IfThenElseZero(hides, infinity), d, to);
        key = hn::ShiftLeft<1>(key);
        to += width;
      }
    }
    hidden += width;
  }
}

/// Replaces n numbers of a bias up to `limit` by -inf.
template <typename T>
HWY_INLINE void hide_low(T limit, int64_t n, T* row) {
  store_each<T>(row, n, [&](int64_t i, auto d) {
    const auto x = load(d, row + i);
    const auto low = hn::Le(x, hn::Set(d, limit));
    return hn::IfThenElse(low, hn::Set(d, -kInfinity<T>), x);
  });
}

/// Replaces the numbers of a tile (range.n, width) up to the limits of their
/// rows by -inf.
template <typename X, typename T>
HWY_NOINLINE void hide_low_in_tile(
    const Head<X>& head,
    const Range& range,
    int64_t width,
    const AddedMemory<T>& memory) {
  const Tag<T> d;
  const auto hidden = hn::Set(d, -kInfinity<T>);
  for (int64_t r = 0; r < width; ++r) {
    memory.limits[r] =
        r < range.rows ? head.low_limit(range.t + r) : -kInfinity<T>;
  }
  for (int64_t r = 0; r < width; r += kLanes<T>) {
    const auto limit = load(d, memory.limits + r);
    for (int64_t i = 0; i < range.n; ++i) {
      auto* at = memory.tile + i * width + r;
      const auto x = load(d, at);
      store(hn::IfThenElse(hn::Le(x, limit), hidden, x), d, at);
    }
  }
}

/// Writes bias and mask of one row of the head, for n keys from s on. Returns
/// the number of keys that the mask hides.
template <typename X, typename T = Compute<X>>
int64_t fill_added_row(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    int64_t t,
    int64_t s,
    int64_t n,
    T* row) {
  const auto copy = [&](const auto& bias, const auto* of_head) {
    const auto* from = of_head + head.offset(bias, t) + s * bias.key;
    if (bias.key == 1) {
      store_each<T>(
          row, n, [&](int64_t i, auto d) { return load(d, from + i); });
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      row[i] = get(from + i * bias.key);
    }
  };
  if (head.bias != nullptr) {
    copy(a.bias, head.bias);
  } else if (head.wide_bias != nullptr) {
    copy(a.wide_bias, head.wide_bias);
  } else {
    std::fill(row, row + n, T(0));
  }
  if (head.has_low_limits()) {
    hide_low(head.low_limit(t), n, row);
  }
  int64_t hidden = 0;
  const uint8_t* mask = nullptr;
  if (head.mask != nullptr) {
    mask = bytes_of(head.mask) + head.offset(a.mask, t) + s * a.mask.key;
    const auto hide = [&](auto distance) {
      for (int64_t i = 0; i < n; ++i) {
        const bool hides = mask[i * distance] != 0;
        row[i] = hides ? -kInfinity<T> : row[i];
        hidden += hides ? 1 : 0;
      }
    };
    if (a.mask.key == 1) {
      hide(std::integral_constant<int64_t, 1>()); // vectorized
    } else {
      hide(a.mask.key);
    }
  }
  if (a.mask_tiles.defined()) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; ++i) {
      bits = i % 64 == 0 ? hidden_by_tiles(head, t, s + i) : bits >> 1;
      if ((bits & 1) != 0) {
        row[i] = -kInfinity<T>;
        hidden += mask == nullptr || mask[i * a.mask.key] == 0 ? 1 : 0;
      }
    }
  }
  return hidden;
}

/// Returns bias and mask for a tile of `width` lanes.
template <typename X, typename T = Compute<X>>
Added<T> added_to_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    int64_t width,
    const AddedMemory<T>& memory) {
  Added<T> added;
  if (!has_bias_or_mask(a)) {
    return added;
  }
  // An absent bias or mask has strides of 0.
  const auto differs = [&](const auto& x) {
    return x.query != 0 || (head.heads() > 1 && x.head != 0);
  };
  added.per_row = differs(a.bias) || differs(a.wide_bias) || differs(a.mask) ||
      a.mask_tiles.defined();
  const bool biased = head.bias != nullptr || head.wide_bias != nullptr;
  const bool has_bits = head.map != nullptr && head.map->only_hides;
  if (added.per_row && (has_bits || (!biased && a.mask.key == 1))) {
    const auto hidden = gather_hidden(a, head, range, width, memory.hidden);
    added.hides_all = hidden == range.rows * range.n;
    if (hidden > 0 && !added.hides_all) {
      spread_hidden(memory.hidden, range.n, width, memory.tile);
      added.data = memory.tile;
    }
    return added;
  }
  const auto pack = [&](const auto& rows, int64_t first) {
    pack_transposed(
        rows, first, range.rows, range.n, Unscaled(), memory.tile, width);
    added.data = memory.tile;
  };
  if (head.mask == nullptr && !a.mask_tiles.defined() && added.per_row) {
    const auto pack_bias = [&](const auto& x, const auto* of_head) {
      using Y = std::remove_pointer_t<decltype(of_head)>;
      if (x.key == 1) {
        const Rows<Y> rows{of_head + range.s, x.query, x.head, head.heads()};
        pack(rows, range.t);
        // Prefetches the rows of the next keys: too far apart for the hardware.
        for (int64_t r = 0; r < range.rows; ++r) {
          prefetch_row(
              rows.at(range.t + r) + range.n,
              range.n * static_cast<int64_t>(sizeof(Y)));
        }
      }
    };
    pack_bias(a.bias, head.bias);
    pack_bias(a.wide_bias, head.wide_bias);
    if (added.data != nullptr) {
      if (head.has_low_limits()) {
        hide_low_in_tile(head, range, width, memory);
      }
      return added;
    }
  }
  const auto different_rows = added.per_row ? range.rows : 1;
  int64_t hidden = 0;
  for (int64_t r = 0; r < different_rows; ++r) {
    hidden += fill_added_row(
        a, head, range.t + r, range.s, range.n, memory.rows + r * memory.keys);
  }
  added.hides_all = hidden == different_rows * range.n;
  if (added.hides_all || (hidden == 0 && !biased)) {
    return added;
  }
  added.data = memory.rows;
  if (added.per_row) {
    pack(Rows<const T>{memory.rows, memory.keys}, 0);
  }
  return added;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
