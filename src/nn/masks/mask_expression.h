#pragma once

#include <torch_attention/nn/options/mask_mod.h>

#include <cstdint>

/// The values that `MaskMod` combines.
namespace torch_attention::detail {

/// Queries [q, q_end) and keys [k, k_end), by position, of head h of sequence
/// b. None is empty.
struct MaskRegion {
  int64_t b = 0;
  int64_t h = 0;
  int64_t q = 0;
  int64_t q_end = 0;
  int64_t k = 0;
  int64_t k_end = 0;
};

/// How many keys of a region the queries attend to. kSome promises nothing.
enum class Seen { kNone, kSome, kAll };

/// The queries of a region that is written as words.
constexpr int64_t kMaskRows = 64;
/// The keys of a word.
constexpr int64_t kMaskKeys = 64;

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
