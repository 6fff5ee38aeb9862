#include <nn/masks/mask_expression.h>

#include <check.h>
#include <nn/checks.h>

#include <c10/core/InferenceMode.h>
#include <torch/types.h>

#include <algorithm>

namespace torch_attention {

namespace detail {

namespace {

/// The blocks of positions [begin, end), where end > begin >= 0.
struct BlockRange {
  BlockRange(int64_t begin, int64_t end, int64_t size)
      : first(begin / size), last((end - 1) / size) {}

  int64_t first;
  int64_t last;
};

class Blocks final : public MaskExpression {
 public:
  /// `sees` is bool (B, H, R, C).
  Blocks(torch::Tensor sees, int64_t query_size, int64_t key_size)
      : sees_(std::move(sees)), query_size_(query_size), key_size_(key_size) {}

  void check(const MaskPositions& x) const override {
    const auto fits = [&](int64_t dim, int64_t n) {
      return sees_.size(dim) == 1 || sees_.size(dim) == n;
    };
    const auto covers = [&](int64_t dim, int64_t size, int64_t end) {
      return end <= 0 || (end - 1) / size < sees_.size(dim);
    };
    TORCH_ATTENTION_CHECK(
        fits(0, x.batch_size) && fits(1, x.num_heads) && !x.has_negative &&
            covers(2, query_size_, x.query_end) &&
            covers(3, key_size_, x.key_end),
        "BlockMask: expected blocks of {} queries and {} keys for batch_size = "
        "{} and num_heads = {} or 1, and for all positions from 0 to the last "
        "query {} and the last key {}, but got blocks of shape {}",
        query_size_,
        key_size_,
        x.batch_size,
        x.num_heads,
        x.query_end - 1,
        x.key_end - 1,
        sees_.sizes());
  }

  Seen seen(const MaskRegion& x) const override {
    const BlockRange queries(x.q, x.q_end, query_size_);
    const BlockRange keys(x.k, x.k_end, key_size_);
    bool some = false;
    bool all = true;
    for (auto r = queries.first; r <= queries.last; ++r) {
      const auto* row = row_of(x, r);
      for (auto c = keys.first; c <= keys.last; ++c) {
        some = some || row[c] != 0;
        all = all && row[c] != 0;
      }
      if (some && !all) {
        return Seen::kSome;
      }
    }
    return all ? Seen::kAll : Seen::kNone;
  }

  void write(const MaskRegion& x, uint64_t* words) const override {
    std::fill_n(words, x.num_words(), uint64_t{0});
    const BlockRange keys(x.k, x.k_end, key_size_);
    for (auto q = x.q; q < x.q_end; ++q) {
      const auto* row = row_of(x, q / query_size_);
      auto* word = words + (q - x.q);
      for (auto c = keys.first; c <= keys.last; ++c) {
        if (row[c] != 0) {
          const auto begin = std::max(c * key_size_, x.k) - x.k;
          // The end of a block may be beyond all numbers.
          const auto end = c == keys.last ? x.k_end : (c + 1) * key_size_;
          set_bits(word, begin, end - x.k);
        }
      }
    }
  }

 private:
  /// Returns bytes, since a view of bytes as bool may have others than 0 and 1.
  const uint8_t* row_of(const MaskRegion& x, int64_t r) const {
    const auto b = sees_.size(0) == 1 ? 0 : x.b;
    const auto h = sees_.size(1) == 1 ? 0 : x.h;
    return static_cast<const uint8_t*>(sees_.const_data_ptr()) +
        ((b * sees_.size(1) + h) * sees_.size(2) + r) * sees_.size(3);
  }

  torch::Tensor sees_;
  int64_t query_size_;
  int64_t key_size_;
};

} // namespace

} // namespace detail

MaskMod MaskMod::blocks(
    const torch::Tensor& sees,
    int64_t query_size,
    int64_t key_size) {
  constexpr const char* kName = "MaskMod";
  checks::check_positive(kName, "query_size", query_size);
  checks::check_positive(kName, "key_size", key_size);
  checks::check_has_numbers(kName, "blocks", sees);
  TORCH_ATTENTION_CHECK(
      sees.scalar_type() == torch::kBool &&
          (sees.dim() == 2 || sees.dim() == 4),
      "MaskMod: expected blocks, bool of shape (R, C) or (B, H, R, C), but got "
      "{} of shape {}",
      sees.scalar_type(),
      sees.sizes());
  const c10::InferenceMode normal_tensors(false);
  const auto all = sees.dim() == 2 ? sees.unsqueeze(0).unsqueeze(0) : sees;
  return MaskMod(std::make_shared<detail::Blocks>(
      all.detach().to(torch::kCPU).clone(at::MemoryFormat::Contiguous),
      query_size,
      key_size));
}

} // namespace torch_attention
