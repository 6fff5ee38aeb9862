#pragma once

#include <cpu/mask_tiles.h>
#include <torch_attention/nn/options/mask_mod.h>

#include <algorithm>
#include <cstdint>

/// The values that `MaskMod` combines.
namespace torch_attention::detail {

/// The queries of a region that is written as words.
constexpr int64_t kMaskRows = cpu::MaskTiles::kSize;
/// The keys of a word.
constexpr int64_t kMaskKeys = cpu::MaskTiles::kSize;

/// Queries [q, q_end) and keys [k, k_end), by position, of head h of sequence
/// b. None is empty.
struct MaskRegion {
  int64_t b = 0;
  int64_t h = 0;
  int64_t q = 0;
  int64_t q_end = 0;
  int64_t k = 0;
  int64_t k_end = 0;

  /// Returns the number of words that `MaskExpression::write` writes.
  int64_t num_words() const {
    return (k_end - k + kMaskKeys - 1) / kMaskKeys * kMaskRows;
  }
};

/// Sets bits [begin, end) of a query, whose first word is `word`.
inline void set_bits(uint64_t* word, int64_t begin, int64_t end) {
  while (begin < end) {
    const auto first = begin / kMaskKeys * kMaskKeys;
    const auto next = std::min(end, first + kMaskKeys);
    word[first / kMaskKeys * kMaskRows] |=
        cpu::MaskTiles::bits_between(begin - first, next - first);
    begin = next;
  }
}

/// How many keys of a region the queries attend to. kSome promises nothing.
enum class Seen { kNone, kSome, kAll };

/// The sizes for which an expression is to be evaluated.
struct MaskPositions {
  int64_t batch_size = 1;
  int64_t num_heads = 1;
  /// The queries and keys after the last positions of each sequence, and
  /// whether there are positions below 0.
  int64_t query_end = 0;
  int64_t key_end = 0;
  bool has_negative = false;
};

class MaskExpression {
 public:
  MaskExpression() = default;
  MaskExpression(const MaskExpression&) = delete;
  MaskExpression& operator=(const MaskExpression&) = delete;
  virtual ~MaskExpression() = default;

  /// Throws c10::Error if the expression is not defined there.
  virtual void check(const MaskPositions& /*positions*/) const {}

  /// Returns whether a function of the user is called, which only one thread
  /// may do.
  virtual bool calls_back() const {
    return false;
  }

  virtual Seen seen(const MaskRegion& region) const = 0;

  /// Writes a bit for each query and key of a region of at most kMaskRows
  /// queries: words (keys / kMaskKeys, kMaskRows), of which other bits and
  /// words become anything.
  virtual void write(const MaskRegion& region, uint64_t* words) const = 0;
};

} // namespace torch_attention::detail
