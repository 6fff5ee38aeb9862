#pragma once

#include <cpu/attention.h>
#include <cpu/mask_tiles.h>
#include <cpu/visibility.h>

#include <algorithm>
#include <cstdint>
#include <limits>

/// Maps mask and bias to units of keys, so that tiles which see nothing are
/// skipped, and neither is read for tiles that see all.
namespace torch_attention::cpu {

/// The keys of a unit, which share a bit. Steps of dropout fit into it.
constexpr int64_t kUnitKeys = 16;
/// The keys of a word of bits.
constexpr int64_t kWordKeys = 64 * kUnitKeys;

/// Returns the number of words for S keys.
constexpr int64_t unit_words(int64_t S) {
  return (S + kWordKeys - 1) / kWordKeys;
}

/// Calls `fn(word, bits)` for the words with the units of keys [s, s_end), and
/// these units' bits, until it returns true. Returns whether it did.
template <typename Fn>
bool any_word(int64_t s, int64_t s_end, const Fn& fn) {
  const auto end = (s_end + kUnitKeys - 1) / kUnitKeys;
  for (auto unit = s / kUnitKeys; s < s_end && unit < end;) {
    const auto word = unit / 64;
    const auto stop = std::min(end, (word + 1) * 64);
    const auto bits = ~uint64_t{0} >> (64 - (stop - unit)) << (unit % 64);
    if (fn(word, bits)) {
      return true;
    }
    unit = stop;
  }
  return false;
}

/// Returns a bit for each unit of 64 keys of which one is set in x.
constexpr uint64_t units_of(uint64_t x) {
  x |= x >> 8;
  x |= x >> 4;
  x |= x >> 2;
  x |= x >> 1;
  x &= 0x0001000100010001U;
  return (x | x >> 15 | x >> 30 | x >> 45) & 15;
}
static_assert(kUnitKeys == 16);

/// The bits of a mask or bias (B, H, T, S), with broadcast rows stored once.
struct UnitBits {
  /// of a row; 0: the tensor was not read, and all bits count as set
  int64_t words = 0;
  // Distances in rows
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  /// (rows, words): some key of the unit may be seen
  const uint64_t* seen = nullptr;
  /// (rows, words): some score of the unit is changed, or hidden
  const uint64_t* changed = nullptr;
  /// (rows, kUnitKeys * words + 1): the keys that are hidden
  const uint64_t* hidden = nullptr;

  int64_t row(int64_t b, int64_t h, int64_t t) const {
    return b * batch + h * head + t * query;
  }

  /// Returns the hidden ones of up to 64 keys from s on, as bits. They are all
  /// that a bias does only if it hides or is 0.
  uint64_t hidden_from(int64_t row, int64_t s) const {
    if (words == 0) {
      return 0;
    }
    const auto* word = hidden + row * hidden_words(words) + s / 64;
    const auto shift = s % 64;
    return shift == 0 ? *word : word[0] >> shift | word[1] << (64 - shift);
  }

  static int64_t hidden_words(int64_t words) {
    return kUnitKeys * words + 1;
  }
};

/// The map of mask and bias of one call.
template <typename T>
struct MaskMap {
  UnitBits mask;
  UnitBits bias;
  MaskTiles tiles;
  /// (rows of `bias`): numbers of the bias up to this one hide as -inf does,
  /// since their weights are exactly 0. Null: -inf alone hides.
  const T* limits = nullptr;
  /// There is a mask or bias that was not read.
  bool is_partial = false;
  /// All was read, and the bias is 0 where it does not hide: the hidden keys
  /// are then all there is to know.
  bool only_hides = false;

  T limit(int64_t b, int64_t h, int64_t t) const {
    return limits != nullptr ? limits[bias.row(b, h, t)]
                             : -std::numeric_limits<T>::infinity();
  }

  /// Returns which of the up to 64 keys from s on are hidden, if `only_hides`.
  uint64_t hidden_from(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return mask.hidden_from(mask.row(b, h, t), s) |
        bias.hidden_from(bias.row(b, h, t), s) | hidden_by_tiles(b, h, t, s);
  }

  /// Returns which of the up to 64 keys from s on the tiles hide.
  uint64_t hidden_by_tiles(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return tiles.defined() ? ~tiles.seen_from(b, h, t, s) : 0;
  }

  /// Returns whether one of the queries may see one of the keys [s, s_end), in
  /// some of the heads.
  bool sees(
      int64_t b,
      int64_t num_heads,
      const Queries& queries,
      int64_t s,
      int64_t s_end) const {
    const auto allows = [&](const UnitBits& bits) {
      if (bits.words == 0) {
        return true;
      }
      const auto heads = bits.head == 0 ? 1 : num_heads;
      const auto end = bits.query == 0 ? queries.begin + 1 : queries.end;
      for (int64_t h = 0; h < heads; ++h) {
        for (auto t = queries.begin; t < end; ++t) {
          const auto* row = bits.seen + bits.row(b, h, t) * bits.words;
          if (any_word(s, s_end, [&](int64_t word, uint64_t units) {
                return (row[word] & units) != 0;
              })) {
            return true;
          }
        }
      }
      return false;
    };
    return allows(mask) && allows(bias) &&
        tiles_allow(b, num_heads, queries, s, s_end);
  }

 private:
  bool tiles_allow(
      int64_t b,
      int64_t num_heads,
      const Queries& queries,
      int64_t s,
      int64_t s_end) const {
    if (!tiles.defined()) {
      return true;
    }
    const auto heads = tiles.head == 0 ? 1 : num_heads;
    for (int64_t h = 0; h < heads; ++h) {
      if (tiles.sees(b, h, queries.begin, queries.end, s, s_end)) {
        return true;
      }
    }
    return false;
  }
};

/// The units that some row of a tile sees, and those that are changed for some.
struct TileMap {
  int64_t first_word = 0;
  /// 0: there is no map, and all bits count as set
  int64_t words = 0;
  uint64_t* seen = nullptr;
  uint64_t* changed = nullptr;
  uint64_t* scratch = nullptr;
  uint64_t* complete = nullptr;

  TileMap() = default;

  /// Takes the memory for up to `keys` neighbouring keys.
  template <typename Parts>
  TileMap(Parts& parts, int64_t keys) {
    const auto most = unit_words(keys) + 1;
    seen = parts.template take<uint64_t>(most);
    changed = parts.template take<uint64_t>(most);
    scratch = parts.template take<uint64_t>(most);
    complete = parts.template take<uint64_t>(most);
  }

  /// Collects the bits of the rows and keys of `range`, of `heads` heads from
  /// h on whose queries are interleaved. `map` may be null.
  template <typename T>
  void collect(
      const MaskMap<T>* map,
      int64_t b,
      int64_t h,
      int64_t heads,
      const Range& range) {
    words = 0;
    if (map == nullptr || range.n <= 0 || range.rows <= 0) {
      return;
    }
    first_word = range.s / kWordKeys;
    words = unit_words(range.s_end()) - first_word;
    const auto all = ~uint64_t{0};
    std::fill_n(seen, words, map->mask.words > 0 ? 0 : all);
    std::fill_n(changed, words, map->is_partial ? all : 0);
    if (map->mask.words > 0) {
      add_rows(map->mask, b, h, heads, range, seen);
    }
    if (map->bias.words > 0) {
      std::fill_n(scratch, words, uint64_t{0});
      add_rows(map->bias, b, h, heads, range, scratch);
      keep_seen();
    }
    if (map->tiles.defined()) {
      std::fill_n(scratch, words, uint64_t{0});
      add_tiles(map->tiles, b, h, heads, range);
      keep_seen();
    }
  }

  /// Returns whether some row may see one of the keys [s, s_end).
  bool sees(int64_t s, int64_t s_end) const {
    return words == 0 ? s < s_end : any(seen, s, s_end);
  }

  /// Returns whether mask or bias change the scores of some of the keys [s,
  /// s_end), or hide them.
  bool changes(int64_t s, int64_t s_end) const {
    return words == 0 || any(changed, s, s_end);
  }

  /// Trims the keys that no row sees from both ends of `range`.
  void trim(Range& range) const {
    if (words == 0) {
      return;
    }
    auto end = range.s_end();
    while (range.s < end && !sees(range.s, range.s + 1)) {
      range.s = (range.s / kUnitKeys + 1) * kUnitKeys;
    }
    while (range.s < end && !sees(end - 1, end)) {
      end = (end - 1) / kUnitKeys * kUnitKeys;
    }
    range.n = end - range.s;
  }

 private:
  bool any(const uint64_t* bits, int64_t s, int64_t s_end) const {
    return any_word(s, s_end, [&](int64_t word, uint64_t units) {
      return (bits[word - first_word] & units) != 0;
    });
  }

  /// Leaves in `seen` only what is in `scratch`.
  void keep_seen() {
    for (int64_t i = 0; i < words; ++i) {
      seen[i] &= scratch[i];
    }
  }

  /// Adds the units of all rows to `scratch` and `changed`.
  void add_tiles(
      const MaskTiles& tiles,
      int64_t b,
      int64_t h,
      int64_t heads,
      const Range& range) {
    const auto t = range.t / heads;
    const auto t_end = (range.t_end() - 1) / heads + 1;
    const auto different = tiles.head == 0 ? 1 : heads;
    for (auto head = h; head < h + different; ++head) {
      for (auto row = t / MaskTiles::kSize; row * MaskTiles::kSize < t_end;
           ++row) {
        std::fill_n(complete, words, uint64_t{0});
        for (const auto& run : tiles.runs_from(b, head, row, range.s)) {
          if (run.first * MaskTiles::kSize >= range.s_end()) {
            break;
          }
          add_run(
              run,
              units_of(tiles.seen_by_some(run, row, t, t_end)),
              units_of(~tiles.seen_by_all(run, row, t, t_end)));
        }
        for (int64_t i = 0; i < words; ++i) {
          changed[i] |= ~complete[i];
        }
      }
    }
  }

  /// Adds the units of a run's tiles to `scratch` and `complete`.
  void add_run(
      const MaskTiles::Run& run,
      uint64_t seen_units,
      uint64_t hidden) {
    constexpr auto kTilesPerWord = kWordKeys / MaskTiles::kSize;
    constexpr auto kUnits = MaskTiles::kSize / kUnitKeys;
    const auto end = std::min(run.end, (first_word + words) * kTilesPerWord);
    for (auto tile = std::max(run.first, first_word * kTilesPerWord);
         tile < end;
         ++tile) {
      const auto word = tile / kTilesPerWord - first_word;
      const auto shift = tile % kTilesPerWord * kUnits;
      scratch[word] |= seen_units << shift;
      complete[word] |= (~hidden & 15) << shift;
    }
  }

  /// Adds the bits of all rows to `seen_by_some` and `changed`.
  void add_rows(
      const UnitBits& bits,
      int64_t b,
      int64_t h,
      int64_t heads,
      const Range& range,
      uint64_t* seen_by_some) {
    const auto add = [&](int64_t head, int64_t t) {
      const auto at = bits.row(b, head, t) * bits.words + first_word;
      for (int64_t i = 0; i < words; ++i) {
        seen_by_some[i] |= bits.seen[at + i];
        changed[i] |= bits.changed[at + i];
      }
    };
    if (heads > 1 && bits.head != 0) {
      for (auto r = range.t; r < range.t_end(); ++r) {
        add(h + r % heads, r / heads);
      }
      return;
    }
    const auto first = range.t / heads;
    const auto last = bits.query == 0 ? first : (range.t_end() - 1) / heads;
    for (auto t = first; t <= last; ++t) {
      add(h, t);
    }
  }
};

} // namespace torch_attention::cpu
