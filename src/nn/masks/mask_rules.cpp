#include <nn/masks/mask_expression.h>

#include <check.h>
#include <nn/checks.h>

#include <ATen/ExpandUtils.h>
#include <c10/core/InferenceMode.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention {

namespace detail {

namespace {

constexpr const char* kName = "MaskMod";
constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

/// Returns a + b, or the nearest number that there is.
int64_t add(int64_t a, int64_t b) {
  if (b > 0) {
    return a > kLast - b ? kLast : a + b;
  }
  return a < kFirst - b ? kFirst : a + b;
}

/// Keys [begin, end).
struct KeyRange {
  int64_t begin = kFirst;
  int64_t end = kLast;
};

/// A rule by which the keys of a query follow each other; neither their begin
/// nor their end decreases from query to query.
class RangeRule : public MaskExpression {
 public:
  virtual KeyRange keys(int64_t b, int64_t q) const = 0;

  Seen seen(const MaskRegion& x) const override {
    const auto first = keys(x.b, x.q);
    const auto last = keys(x.b, x.q_end - 1);
    if (last.end <= x.k || first.begin >= x.k_end) {
      return Seen::kNone;
    }
    return last.begin <= x.k && first.end >= x.k_end ? Seen::kAll : Seen::kSome;
  }

  void write(const MaskRegion& x, uint64_t* words) const override {
    std::fill_n(words, x.num_words(), uint64_t{0});
    for (auto q = x.q; q < x.q_end; ++q) {
      const auto of_query = keys(x.b, q);
      set_bits(
          words + (q - x.q),
          std::clamp(of_query.begin, x.k, x.k_end) - x.k,
          std::clamp(of_query.end, x.k, x.k_end) - x.k);
    }
  }
};

class Causal final : public RangeRule {
 public:
  KeyRange keys(int64_t /*b*/, int64_t q) const override {
    return {kFirst, add(q, 1)};
  }
};

class Window final : public RangeRule {
 public:
  Window(int64_t window, std::optional<int64_t> after)
      : before_(window - 1), after_(after) {}

  KeyRange keys(int64_t /*b*/, int64_t q) const override {
    return {add(q, -before_), after_ ? add(add(q, *after_), 1) : kLast};
  }

 private:
  int64_t before_;
  std::optional<int64_t> after_;
};

class Chunk final : public RangeRule {
 public:
  explicit Chunk(int64_t size) : size_(size) {}

  KeyRange keys(int64_t /*b*/, int64_t q) const override {
    const auto within = q % size_;
    const auto begin = add(q, -(within < 0 ? within + size_ : within));
    return {begin, add(begin, size_)};
  }

 private:
  int64_t size_;
};

/// Checks integers (n) or (B, n) that belong to positions, and returns them as
/// a copy, int64 (B, n) on the CPU.
torch::Tensor copied_ids(const char* what, const torch::Tensor& ids) {
  const c10::InferenceMode normal_tensors(false);
  checks::check_has_numbers(kName, what, ids);
  TORCH_ATTENTION_CHECK(
      checks::has_integers(ids) && (ids.dim() == 1 || ids.dim() == 2),
      "MaskMod: expected {} of an integer dtype and shape (L) or (B, L), but "
      "got {} of shape {}",
      what,
      ids.scalar_type(),
      ids.sizes());
  const auto rows = ids.dim() == 1 ? ids.unsqueeze(0) : ids;
  return checks::to_int64(rows.detach())
      .to(torch::kCPU)
      .clone(at::MemoryFormat::Contiguous);
}

void check_batch(
    const char* what,
    const torch::Tensor& rows,
    const MaskPositions& positions) {
  TORCH_ATTENTION_CHECK(
      rows.size(0) == 1 || rows.size(0) == positions.batch_size,
      "BlockMask: expected {} for all sequences or for each of batch_size = "
      "{}, but got them for {}",
      what,
      positions.batch_size,
      rows.size(0));
}

/// The ids of positions.
class Ids {
 public:
  Ids(const char* what, const torch::Tensor& ids)
      : rows_(copied_ids(what, ids)), blocks_(blocks_of(rows_.size(1))) {
    for (int64_t b = 0; b < rows_.size(0); ++b) {
      for (int64_t i = 0; i < blocks_; ++i) {
        const auto end = std::min((i + 1) * kBlock, rows_.size(1));
        of_blocks_.push_back(scanned(b, i * kBlock, end));
      }
    }
  }

  void check(const char* what, const MaskPositions& positions, int64_t end)
      const {
    check_batch(what, rows_, positions);
    TORCH_ATTENTION_CHECK(
        !positions.has_negative && end <= rows_.size(1),
        "BlockMask: expected {} for all positions, of which the last is {}, "
        "{}but got {} of them",
        what,
        end - 1,
        positions.has_negative ? "and none below 0, " : "",
        rows_.size(1));
  }

  /// Returns the ids of a sequence.
  const int64_t* of(int64_t b) const {
    return rows_.const_data_ptr<int64_t>() +
        (rows_.size(0) == 1 ? 0 : b * rows_.size(1));
  }

  struct Limits {
    int64_t lowest = kLast;
    int64_t highest = kFirst;

    void add(const Limits& other) {
      lowest = std::min(lowest, other.lowest);
      highest = std::max(highest, other.highest);
    }
  };

  /// Returns the smallest and the largest id of positions [begin, end).
  Limits limits(int64_t b, int64_t begin, int64_t end) const {
    const auto first = blocks_of(begin);
    const auto last = end / kBlock;
    if (first >= last) {
      return scanned(b, begin, end);
    }
    auto limits = scanned(b, begin, first * kBlock);
    limits.add(scanned(b, last * kBlock, end));
    const auto row = rows_.size(0) == 1 ? 0 : b * blocks_;
    for (auto i = first; i < last; ++i) {
      limits.add(of_blocks_[static_cast<size_t>(row + i)]);
    }
    return limits;
  }

 private:
  static constexpr int64_t kBlock = 64;

  static int64_t blocks_of(int64_t n) {
    return (n + kBlock - 1) / kBlock;
  }

  Limits scanned(int64_t b, int64_t begin, int64_t end) const {
    Limits limits;
    const auto* ids = of(b);
    for (auto i = begin; i < end; ++i) {
      limits.add({ids[i], ids[i]});
    }
    return limits;
  }

  torch::Tensor rows_;
  int64_t blocks_;
  std::vector<Limits> of_blocks_;
};

class Documents final : public MaskExpression {
 public:
  Documents(const torch::Tensor& ids, const torch::Tensor& key_ids)
      : queries_("ids", ids) {
    if (key_ids.defined()) {
      keys_.emplace("key_ids", key_ids);
    }
  }

  void check(const MaskPositions& positions) const override {
    const auto query_end = positions.query_end;
    const auto key_end = positions.key_end;
    if (keys_) {
      queries_.check("ids", positions, query_end);
      keys_->check("key_ids", positions, key_end);
    } else {
      queries_.check("ids", positions, std::max(query_end, key_end));
    }
  }

  Seen seen(const MaskRegion& x) const override {
    const auto q = queries_.limits(x.b, x.q, x.q_end);
    const auto k = keys().limits(x.b, x.k, x.k_end);
    if (q.highest < 0 || k.highest < 0 || q.highest < k.lowest ||
        q.lowest > k.highest) {
      return Seen::kNone;
    }
    return q.lowest == q.highest && k.lowest == k.highest ? Seen::kAll
                                                          : Seen::kSome;
  }

  void write(const MaskRegion& x, uint64_t* words) const override {
    const auto* queries = queries_.of(x.b);
    const auto* keys = this->keys().of(x.b);
    for (auto k = x.k; k < x.k_end; k += kMaskKeys, words += kMaskRows) {
      const auto n = std::min(x.k_end - k, kMaskKeys);
      for (auto q = x.q; q < x.q_end; ++q) {
        const auto id = queries[q];
        uint64_t word = 0;
        for (int64_t i = 0; i < n; ++i) {
          word |= uint64_t{keys[k + i] == id} << i;
        }
        words[q - x.q] = id < 0 ? 0 : word;
      }
    }
  }

 private:
  const Ids& keys() const {
    return keys_ ? *keys_ : queries_;
  }

  Ids queries_;
  std::optional<Ids> keys_;
};

class Prefix final : public RangeRule {
 public:
  explicit Prefix(torch::Tensor lengths) : lengths_(std::move(lengths)) {}

  void check(const MaskPositions& positions) const override {
    check_batch("lengths", lengths_, positions);
  }

  KeyRange keys(int64_t b, int64_t /*q*/) const override {
    const auto row = lengths_.size(0) == 1 ? 0 : b;
    return {kFirst, lengths_.const_data_ptr<int64_t>()[row]};
  }

 private:
  torch::Tensor lengths_; // (B, 1)
};

class Function final : public MaskExpression {
 public:
  explicit Function(MaskMod::Function function)
      : function_(std::move(function)) {}

  bool calls_back() const override {
    return true;
  }

  Seen seen(const MaskRegion& /*region*/) const override {
    return Seen::kSome;
  }

  void write(const MaskRegion& x, uint64_t* words) const override {
    const torch::NoGradGuard no_grad;
    const auto Q = x.q_end - x.q;
    const auto K = x.k_end - x.k;
    const auto number = [](int64_t i) {
      return torch::scalar_tensor(i, torch::kLong);
    };
    const auto range = [](int64_t begin, int64_t end) {
      return torch::arange(begin, end, torch::kLong);
    };
    const auto given = function_(
        number(x.b),
        number(x.h),
        range(x.q, x.q_end).unsqueeze(1),
        range(x.k, x.k_end).unsqueeze(0));
    TORCH_ATTENTION_CHECK(
        given.defined() && given.scalar_type() == torch::kBool &&
            given.layout() == torch::kStrided && given.is_cpu() &&
            at::is_expandable_to(given.sizes(), {Q, K}),
        "MaskMod: expected a function that gives a bool tensor on the CPU that "
        "broadcasts to (Q, K) = {}, but got {}",
        torch::IntArrayRef({Q, K}),
        !given.defined() ? std::string("an undefined tensor")
                         : format_text(
                               "{} of shape {} on {}",
                               given.scalar_type(),
                               given.sizes(),
                               given.device()));
    const auto sees = given.expand({Q, K}).contiguous();
    // A view of bytes as bool may have others than 0 and 1.
    const auto* row = static_cast<const uint8_t*>(sees.const_data_ptr());
    for (int64_t q = 0; q < Q; ++q, row += K) {
      auto* word = words + q;
      for (int64_t k = 0; k < K; k += kMaskKeys, word += kMaskRows) {
        uint64_t bits = 0;
        for (int64_t i = std::min(K - k, kMaskKeys) - 1; i >= 0; --i) {
          bits = bits << 1 | uint64_t{row[k + i] != 0};
        }
        *word = bits;
      }
    }
  }

 private:
  MaskMod::Function function_;
};

using Expression = std::shared_ptr<const MaskExpression>;

/// `a` and `b` both, or one of them.
class Pair final : public MaskExpression {
 public:
  Pair(Expression a, Expression b, bool both)
      : a_(std::move(a)), b_(std::move(b)), both_(both) {}

  void check(const MaskPositions& positions) const override {
    a_->check(positions);
    b_->check(positions);
  }

  bool calls_back() const override {
    return a_->calls_back() || b_->calls_back();
  }

  Seen seen(const MaskRegion& region) const override {
    const auto a = a_->seen(region);
    if (a == deciding()) {
      return a;
    }
    const auto b = b_->seen(region);
    return b == deciding() || a == b ? b : Seen::kSome;
  }

  void write(const MaskRegion& region, uint64_t* words) const override {
    // Where one part leaves the decision to the other, it is not asked.
    const auto neutral = both_ ? Seen::kAll : Seen::kNone;
    if (a_->seen(region) == neutral) {
      b_->write(region, words);
      return;
    }
    a_->write(region, words);
    if (b_->seen(region) == neutral) {
      return;
    }
    const auto n = region.num_words();
    std::vector<uint64_t> others(static_cast<size_t>(n));
    b_->write(region, others.data());
    for (int64_t i = 0; i < n; ++i) {
      const auto other = others[static_cast<size_t>(i)];
      words[i] = both_ ? words[i] & other : words[i] | other;
    }
  }

 private:
  /// Returns the answer with which one part decides for both.
  Seen deciding() const {
    return both_ ? Seen::kNone : Seen::kAll;
  }

  Expression a_;
  Expression b_;
  bool both_;
};

class Not final : public MaskExpression {
 public:
  explicit Not(Expression a) : a_(std::move(a)) {}

  void check(const MaskPositions& positions) const override {
    a_->check(positions);
  }

  bool calls_back() const override {
    return a_->calls_back();
  }

  Seen seen(const MaskRegion& region) const override {
    switch (a_->seen(region)) {
      case Seen::kNone:
        return Seen::kAll;
      case Seen::kAll:
        return Seen::kNone;
      default:
        return Seen::kSome;
    }
  }

  void write(const MaskRegion& region, uint64_t* words) const override {
    a_->write(region, words);
    std::transform(words, words + region.num_words(), words, [](uint64_t word) {
      return ~word;
    });
  }

 private:
  Expression a_;
};

} // namespace

} // namespace detail

MaskMod::MaskMod(Expression expression) : expression_(std::move(expression)) {}

MaskMod MaskMod::function(Function function) {
  TORCH_CHECK(
      static_cast<bool>(function),
      "MaskMod: expected a function, but got none");
  return MaskMod(std::make_shared<detail::Function>(std::move(function)));
}

MaskMod MaskMod::causal() {
  return MaskMod(std::make_shared<detail::Causal>());
}

MaskMod MaskMod::window(int64_t window, std::optional<int64_t> window_after) {
  checks::check_positive(detail::kName, "window", window);
  TORCH_ATTENTION_CHECK(
      !window_after || *window_after >= 0,
      "MaskMod: expected window_after >= 0, but got {}",
      *window_after);
  return MaskMod(std::make_shared<detail::Window>(window, window_after));
}

MaskMod MaskMod::chunk(int64_t size) {
  checks::check_positive(detail::kName, "chunk", size);
  return MaskMod(std::make_shared<detail::Chunk>(size));
}

MaskMod MaskMod::documents(
    const torch::Tensor& ids,
    const torch::Tensor& key_ids) {
  return MaskMod(std::make_shared<detail::Documents>(ids, key_ids));
}

MaskMod MaskMod::packed_documents(const torch::Tensor& cu_seqlens) {
  checks::check_has_numbers(detail::kName, "cu_seqlens", cu_seqlens);
  TORCH_ATTENTION_CHECK(
      checks::has_integers(cu_seqlens) && cu_seqlens.dim() == 1 &&
          cu_seqlens.size(0) > 0,
      "MaskMod: expected cu_seqlens of an integer dtype and shape (n + 1), but "
      "got {} of shape {}",
      cu_seqlens.scalar_type(),
      cu_seqlens.sizes());
  const auto ends = checks::to_int64(cu_seqlens.detach()).to(torch::kCPU);
  const auto starts = checks::to_starts(
      detail::kName, "cu_seqlens", ends, ends[-1].item<int64_t>());
  const auto ids = torch::arange(starts.size(0) - 1, torch::kLong)
                       .repeat_interleave(starts.diff());
  return documents(ids);
}

MaskMod MaskMod::prefix(int64_t length) {
  return prefix(torch::full({1}, length, torch::kLong));
}

MaskMod MaskMod::prefix(const torch::Tensor& lengths) {
  TORCH_ATTENTION_CHECK(
      lengths.defined() && lengths.dim() == 1,
      "MaskMod: expected lengths of shape (B), but got {}",
      lengths.defined() ? format_text("{}", lengths.sizes())
                        : std::string("an undefined tensor"));
  return MaskMod(std::make_shared<detail::Prefix>(
      detail::copied_ids("lengths", lengths.unsqueeze(1))));
}

MaskMod operator&(const MaskMod& a, const MaskMod& b) {
  return MaskMod(std::make_shared<detail::Pair>(
      a.expression_, b.expression_, /*both=*/true));
}

MaskMod operator|(const MaskMod& a, const MaskMod& b) {
  return MaskMod(std::make_shared<detail::Pair>(
      a.expression_, b.expression_, /*both=*/false));
}

MaskMod operator~(const MaskMod& a) {
  return MaskMod(std::make_shared<detail::Not>(a.expression_));
}

} // namespace torch_attention
