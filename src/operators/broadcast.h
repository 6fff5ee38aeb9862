#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch_attention::operators {

using Sizes = std::vector<int64_t>;

/// Returns the sizes of all dimensions but the last `kept`.
inline torch::IntArrayRef leading(const torch::Tensor& x, int64_t kept = 2) {
  return x.sizes().slice(0, static_cast<size_t>(x.dim() - kept));
}

/// Returns whether `a` and `b` broadcast, and sets `a` to the resulting sizes.
inline bool broadcast(Sizes& a, torch::IntArrayRef b) {
  if (a.size() < b.size()) {
    a.insert(a.begin(), b.size() - a.size(), 1);
  }
  const auto offset = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    auto& size = a[offset + i];
    if (size == 1) {
      size = b[i];
    } else if (b[i] != 1 && b[i] != size) {
      return false;
    }
  }
  return true;
}

/// Returns the sizes of a matrix product (..., T, D) x (..., D, S), or nothing
/// if the leading dimensions do not broadcast.
inline std::optional<Sizes> product_sizes(
    const torch::Tensor& left,
    const torch::Tensor& right) {
  if (left.dim() < 2 || right.dim() < 2) {
    return std::nullopt;
  }
  auto sizes = leading(left).vec();
  if (!broadcast(sizes, leading(right))) {
    return std::nullopt;
  }
  sizes.push_back(left.size(-2));
  sizes.push_back(right.size(-1));
  return sizes;
}

} // namespace torch_attention::operators
