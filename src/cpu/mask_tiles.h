#pragma once

#include <algorithm>
#include <cstdint>

/// A mask of which only the tiles that some query sees are in memory.
namespace torch_attention::cpu {

/// A bool tensor (B, H, T, S), true where a query sees a key, as tiles of
/// kSize queries and kSize keys. Tiles that no query sees are not stored.
struct MaskTiles {
  static constexpr int64_t kSize = 64;

  /// Tiles [first, end) of keys, all of them seen completely; or one tile.
  struct Run {
    int64_t first;
    int64_t end;
    /// The index in `words` of the tile's first query; < 0: all keys are seen.
    int64_t words;
  };

  /// (B, H, rows of tiles, 2), where the runs of a row begin and end in `runs`,
  /// in growing order. Null: there is no mask.
  const int64_t* rows = nullptr;
  /// Distances of `rows` in numbers; 0: broadcast
  int64_t batch = 0;
  int64_t head = 0;
  const Run* runs = nullptr;
  /// A word for each of the kSize queries of a tile, with a bit for each key.
  const uint64_t* words = nullptr;

  bool defined() const {
    return rows != nullptr;
  }

  /// The runs of one row of tiles that are not before a key.
  struct Runs {
    const Run* first;
    const Run* last;

    const Run* begin() const {
      return first;
    }
    const Run* end() const {
      return last;
    }
  };

  Runs runs_from(int64_t b, int64_t h, int64_t row, int64_t s) const {
    const auto* at = rows + b * batch + h * head + 2 * row;
    const auto key = s / kSize;
    const auto* last = runs + at[1];
    return {
        std::partition_point(
            runs + at[0], last, [=](const Run& run) { return run.end <= key; }),
        last};
  }

  /// Returns which of 64 keys from s on query t sees, as bits.
  uint64_t seen_from(int64_t b, int64_t h, int64_t t, int64_t s) const {
    uint64_t seen = 0;
    const auto tile = s / kSize;
    const auto shift = s % kSize;
    for (const auto& run : runs_from(b, h, t / kSize, s)) {
      if (run.first > tile + (shift > 0 ? 1 : 0)) {
        break;
      }
      const auto bits = seen_by(run, t % kSize);
      if (run.first <= tile) {
        seen |= bits >> shift;
      }
      if (shift > 0 && run.end > tile + 1) {
        seen |= bits << (kSize - shift);
      }
    }
    return seen;
  }

  /// Returns whether one of the queries [t, t_end) sees one of the keys [s,
  /// s_end).
  bool sees(
      int64_t b,
      int64_t h,
      int64_t t,
      int64_t t_end,
      int64_t s,
      int64_t s_end) const {
    for (auto row = t / kSize; row * kSize < t_end; ++row) {
      for (const auto& run : runs_from(b, h, row, s)) {
        if (run.first * kSize >= s_end) {
          break;
        }
        if (run.words < 0) {
          return true;
        }
        const auto first = run.first * kSize;
        const auto keys = bits_between(
            std::max(s - first, int64_t{0}), std::min(s_end - first, kSize));
        if ((seen_by_some(run, row, t, t_end) & keys) != 0) {
          return true;
        }
      }
    }
    return false;
  }

  /// Returns the keys that query i of a row of tiles sees, of each tile of a
  /// run.
  uint64_t seen_by(const Run& run, int64_t i) const {
    return run.words < 0 ? ~uint64_t{0} : words[run.words + i];
  }

  /// Return the keys that some, or all, of the queries [t, t_end) see, of each
  /// tile of a run in a row of tiles.
  uint64_t seen_by_some(const Run& run, int64_t row, int64_t t, int64_t t_end)
      const {
    uint64_t seen = 0;
    const auto end = std::min(t_end - row * kSize, kSize);
    for (auto i = std::max(t - row * kSize, int64_t{0}); i < end; ++i) {
      seen |= seen_by(run, i);
    }
    return seen;
  }
  uint64_t seen_by_all(const Run& run, int64_t row, int64_t t, int64_t t_end)
      const {
    auto seen = ~uint64_t{0};
    const auto end = std::min(t_end - row * kSize, kSize);
    for (auto i = std::max(t - row * kSize, int64_t{0}); i < end; ++i) {
      seen &= seen_by(run, i);
    }
    return seen;
  }

  /// Returns the bits [begin, end), for 0 <= begin < end <= 64.
  static uint64_t bits_between(int64_t begin, int64_t end) {
    return ~uint64_t{0} >> (kSize - (end - begin)) << begin;
  }
};

/// Returns the mask of sequence `i`.
inline MaskTiles from_sequence(MaskTiles x, int64_t i) {
  if (x.defined()) {
    x.rows += i * x.batch;
  }
  return x;
}

} // namespace torch_attention::cpu
