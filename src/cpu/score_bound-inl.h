// Proves that finite numbers of a bias hide their keys.

#if defined(TORCH_ATTENTION_CPU_SCORE_BOUND_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_SCORE_BOUND_INL_H_
#undef TORCH_ATTENTION_CPU_SCORE_BOUND_INL_H_
#else
#define TORCH_ATTENTION_CPU_SCORE_BOUND_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/mask_rows-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Returns the number up to which numbers of a row of the bias hide their keys,
/// if all scores are in [-bound, bound]: exp(score + number - maximum) is then
/// exactly 0, since the key of the row's largest number is seen and the maximum
/// is no less than its score. -inf if none do: all numbers may be low, and then
/// all keys are seen.
template <typename X, typename Y, typename T = Compute<X>>
T low_limit(const Y* bias, int64_t num_keys, double bound) {
  // exp(-kUnderflow) is 0 in T, and so in X. Sums are rounded to either.
  constexpr double kUnderflow = sizeof(T) == 4 ? 105 : 747;
  constexpr double kRounding = sizeof(X) == 2 ? 0x1p-6
      : sizeof(X) == 4                        ? 0x1p-20
                                              : 0x1p-48;
  const auto highest = static_cast<double>(highest_of<T>(bias, num_keys));
  if (!std::isfinite(highest)) {
    return -kInfinity<T>;
  }
  const auto limit = highest - 2 * bound - kUnderflow;
  const auto rounded =
      limit - kRounding * (std::abs(limit) + std::abs(highest) + bound);
  constexpr auto kLowest = std::numeric_limits<T>::lowest();
  return rounded < static_cast<double>(kLowest) ? -kInfinity<T>
                                                : static_cast<T>(rounded);
}

/// Returns an upper bound of the largest norm of n rows; infinity if a number
/// or its square is not finite.
template <typename X, typename T = Compute<X>>
HWY_NOINLINE T
largest_norm(const X* rows, int64_t row, int64_t n, int64_t size) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto whole = size / N * N;
  auto most = hn::Zero(d);
  auto unusual = hn::Zero(d);
  for (int64_t i = 0; i < n; ++i) {
    const auto* x = rows + i * row;
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < whole; c += N) {
      const auto y = load(d, x + c);
      sum = hn::MulAdd(y, y, sum);
    }
    if (whole < size) {
      HWY_ALIGN X rest[N] = {};
      std::memcpy(
          rest, x + whole, static_cast<size_t>(size - whole) * sizeof(X));
      const auto y = load(d, rest);
      sum = hn::MulAdd(y, y, sum);
    }
    // The largest sum of each lane; added up they bound the sum of any row.
    most = hn::Max(most, sum);
    unusual = hn::MulAdd(sum, hn::Zero(d), unusual);
  }
  return hn::AllTrue(d, hn::Eq(unusual, hn::Zero(d)))
      ? std::sqrt(hn::GetLane(hn::SumOfLanes(d, most)))
      : kInfinity<T>;
}

/// Bounds all scores by the norms of queries and keys. Values, and gradients of
/// outputs, must be finite as well: 0 times infinity is NaN.
template <typename X>
class ScoreBound {
 public:
  using T = Compute<X>;

  ScoreBound(const AttentionArguments<X>& a, const Heads<const X>& grad_output)
      : a_(a), grad_output_(grad_output) {}

  /// Returns whether numbers of the bias can hide keys: other rules might hide
  /// the key of a row's largest number, and slopes lower its score. Norms of
  /// int8 keys are not read.
  bool can_prove() const {
    return !a_.rule.hides_keys() && a_.key_lengths == nullptr &&
        a_.mask.data == nullptr && !a_.mask_tiles.defined() &&
        a_.alibi_slopes == nullptr && !a_.reads_int8();
  }

  /// Returns the number of tasks of `read_norm`: a head of one tensor each.
  int64_t num_norms() const {
    return heads_end(3);
  }

  int64_t numbers() const {
    const auto queries = a_.batch_size * a_.num_heads * a_.num_queries;
    const auto keys = a_.batch_size * a_.num_kv_heads * a_.num_keys;
    return (queries + keys) * (a_.head_dim + a_.value_dim);
  }

  void start() {
    norms_.assign(static_cast<size_t>(num_norms()), T(0));
  }

  void read_norm(int64_t i) {
    auto& norm = norms_[static_cast<size_t>(i)];
    const auto read = [&](const Heads<const X>& x,
                          const void* const* table,
                          int64_t part,
                          int64_t n,
                          int64_t size) {
      const auto head = i - (part == 0 ? 0 : heads_end(part - 1));
      const auto heads = heads_of(part);
      const auto tokens =
          tokens_of(x, table, a_.blocks, head / heads, head % heads);
      tokens.for_each_piece(0, n, [&](const X* piece, int64_t, int64_t m) {
        norm = std::max(norm, largest_norm(piece, tokens.row, m, size));
      });
    };
    if (i < heads_end(0)) {
      read(a_.query, nullptr, 0, a_.num_queries, a_.head_dim);
    } else if (i < heads_end(1)) {
      read(a_.key, a_.blocks.keys, 1, a_.num_keys, a_.head_dim);
    } else if (i < heads_end(2)) {
      read(a_.value, a_.blocks.values, 2, a_.num_keys, a_.value_dim);
    } else {
      read(grad_output_, nullptr, 3, a_.num_queries, a_.value_dim);
    }
  }

  /// Returns the bound; infinity if there is none.
  double value() const {
    const auto most = [&](int64_t begin, int64_t end) {
      T result = 0;
      for (auto i = begin; i < end; ++i) {
        result = std::max(result, norms_[static_cast<size_t>(i)]);
      }
      return static_cast<double>(result);
    };
    const auto product = most(0, heads_end(0)) *
        most(heads_end(0), heads_end(1)) *
        std::abs(a_.rule.factor(a_.head_dim));
    // Squares may underflow, and sums of products are rounded.
    auto bound = 1.01 * product + 1;
    if (!std::isfinite(bound) ||
        !std::isfinite(most(heads_end(1), num_norms()))) {
      return std::numeric_limits<double>::infinity();
    }
    if (a_.rule.softcap) {
      bound = std::min(bound, 1.01 * *a_.rule.softcap);
    }
    return bound;
  }

 private:
  /// `part`: 0 query, 1 key, 2 value, 3 the gradient of the output.
  int64_t heads_of(int64_t part) const {
    return part == 0 || part == 3 ? a_.num_heads : a_.num_kv_heads;
  }

  int64_t heads_end(int64_t part) const {
    int64_t end = 0;
    for (int64_t i = 0; i <= part; ++i) {
      end += i == 3 && grad_output_.data == nullptr ? 0 : heads_of(i);
    }
    return a_.batch_size * end;
  }

  AttentionArguments<X> a_;
  Heads<const X> grad_output_;
  std::vector<T> norms_;
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
