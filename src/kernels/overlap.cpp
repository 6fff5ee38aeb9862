#include <kernels/overlap.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_attention::kernels {

namespace {

/// A summand of a distance in memory: stride * n for one n of first ... last.
struct Term {
  int64_t stride;
  int64_t first;
  int64_t last;
};

/// Searches for numbers n with which terms add up to a distance. For usual
/// strides of tensors, each stride leaves one or two numbers to try.
class Search {
 public:
  /// `terms` must have positive strides.
  explicit Search(std::vector<Term> terms) : terms_(std::move(terms)) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) {
      return a.stride > b.stride;
    });
    least_.assign(terms_.size() + 1, 0);
    most_.assign(terms_.size() + 1, 0);
    for (auto i = terms_.size(); i > 0; --i) {
      const auto& term = terms_[i - 1];
      least_[i - 1] = least_[i] + term.stride * term.first;
      most_[i - 1] = most_[i] + term.stride * term.last;
    }
  }

  bool finds(int64_t distance) {
    return finds(distance, 0);
  }

 private:
  bool finds(int64_t distance, size_t i) {
    if (distance < least_[i] || distance > most_[i]) {
      return false;
    }
    if (i == terms_.size()) {
      return true;
    }
    const auto& [stride, first, last] = terms_[i];
    // The rest must be within reach of the smaller strides.
    const auto from =
        std::max(first, floor_div(distance - most_[i + 1] - 1, stride) + 1);
    const auto to = std::min(last, floor_div(distance - least_[i + 1], stride));
    for (auto n = from; n <= to; ++n) {
      // Nested strides end soon; for others an overlap is assumed after too
      // many steps.
      if (++steps_ > kMostSteps || finds(distance - n * stride, i + 1)) {
        return true;
      }
    }
    return false;
  }

  static int64_t floor_div(int64_t x, int64_t y) {
    return x / y - (x % y < 0 ? 1 : 0);
  }

  static constexpr int64_t kMostSteps = 100000;

  std::vector<Term> terms_;
  /// the least and largest sums of the terms from i on
  std::vector<int64_t> least_;
  std::vector<int64_t> most_;
  int64_t steps_ = 0;
};

const char* address(const torch::Tensor& x) {
  return static_cast<const char*>(x.const_data_ptr());
}

} // namespace

bool overlaps_itself(const torch::Tensor& x) {
  if (x.numel() == 0 || x.is_non_overlapping_and_dense()) {
    return false;
  }
  // The difference of two elements' indices, of which the first that is not 0
  // is positive.
  std::vector<Term> differences;
  for (int64_t i = 0; i < x.dim(); ++i) {
    const auto size = x.size(i);
    if (size == 1) {
      continue;
    }
    const auto stride = x.stride(i);
    if (stride == 0) {
      return true;
    }
    auto terms = differences;
    terms.push_back({stride, 1, size - 1});
    if (Search(terms).finds(0)) {
      return true;
    }
    differences.push_back({stride, 1 - size, size - 1});
  }
  return false;
}

bool overlap(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || !a.is_alias_of(b)) {
    return false;
  }
  // In bytes, as dtypes may differ: an element of `a` begins within one of `b`
  // or up to its own size before it.
  std::vector<Term> terms;
  const auto add = [&](const torch::Tensor& x, int64_t sign) {
    const auto bytes = static_cast<int64_t>(x.element_size());
    for (int64_t i = 0; i < x.dim(); ++i) {
      if (x.size(i) > 1 && x.stride(i) > 0) {
        const auto last = x.size(i) - 1;
        terms.push_back(
            {x.stride(i) * bytes, sign > 0 ? 0 : -last, sign > 0 ? last : 0});
      }
    }
  };
  add(a, 1);
  add(b, -1);
  const auto of_a = static_cast<int64_t>(a.element_size());
  const auto of_b = static_cast<int64_t>(b.element_size());
  terms.push_back({1, -(of_b - 1), of_a - 1});
  return Search(terms).finds(address(b) - address(a));
}

} // namespace torch_attention::kernels
