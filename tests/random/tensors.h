#pragma once

#include <random/random.h>

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::random {

using Sizes = std::vector<int64_t>;

/// The layout of a tensor in another's memory: `view` of one of `base_sizes`.
struct Layout {
  Sizes base_sizes;
  std::function<torch::Tensor(const torch::Tensor&)> view;
  std::string text;
};

/// Returns a layout with the dimensions in another order in memory.
inline Layout permuted(Random& random, const Sizes& sizes) {
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    const auto other = random.integer(0, static_cast<int64_t>(i) - 1);
    std::swap(order[i - 1], order[static_cast<size_t>(other)]);
  }
  Layout layout;
  std::vector<int64_t> back(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    layout.base_sizes.push_back(sizes[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  layout.view = [back](const torch::Tensor& x) { return x.permute(back); };
  layout.text = "permuted";
  return layout;
}

inline Layout contiguous(const Sizes& sizes) {
  return {sizes, [](const torch::Tensor& x) { return x; }, "contiguous"};
}

/// Returns a layout with every other or every third element of a larger tensor
/// in each dimension, unless that takes too much memory: it grows by up to
/// three in each.
inline Layout sliced(Random& random, const Sizes& sizes) {
  Layout layout;
  layout.text = "sliced";
  Sizes first;
  Sizes step;
  for (const auto size : sizes) {
    first.push_back(random.integer(0, 2));
    step.push_back(random.one_of({1, 1, 2, 3}));
    layout.base_sizes.push_back(
        first.back() + size * step.back() + random.integer(0, 2));
  }
  constexpr double kMost = 1 << 24;
  const auto numel = std::accumulate(
      layout.base_sizes.begin(),
      layout.base_sizes.end(),
      1.0,
      std::multiplies<>());
  if (numel > kMost) {
    return contiguous(sizes);
  }
  layout.view = [=](const torch::Tensor& x) {
    auto view = x;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto end = first[i] + sizes[i] * step[i];
      view = view.slice(static_cast<int64_t>(i), first[i], end, step[i]);
    }
    return view;
  };
  return layout;
}

/// Returns a layout with some dimensions of stride 0.
inline Layout expanded(Random& random, const Sizes& sizes) {
  Layout layout;
  layout.text = "expanded";
  layout.base_sizes = sizes;
  for (auto& size : layout.base_sizes) {
    if (size > 1 && random.once_in(2)) {
      size = 1;
    }
  }
  layout.view = [=](const torch::Tensor& x) { return x.expand(sizes); };
  return layout;
}

inline Layout any_layout(Random& random, const Sizes& sizes) {
  switch (random.integer(0, 4)) {
    case 0:
      return permuted(random, sizes);
    case 1:
      return sliced(random, sizes);
    case 2:
      return expanded(random, sizes);
    default:
      return contiguous(sizes);
  }
}

/// Returns sizes that broadcast to `sizes`.
inline Sizes broadcastable(Random& random, const Sizes& sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const auto left_out = random.once_in(3) ? random.integer(0, rank - 1) : 0;
  Sizes result(sizes.begin() + left_out, sizes.end());
  for (auto& size : result) {
    if (random.once_in(4)) {
      size = 1;
    }
  }
  return result;
}

/// Returns a small number: 1, a prime, sometimes 0.
inline int64_t small_size(Random& random) {
  return random.once_in(40) ? 0 : random.one_of({1, 1, 2, 3, 5, 7});
}

/// Returns mostly few tokens, sometimes numbers near the borders of tiles,
/// rarely thousands.
inline int64_t num_tokens(Random& random) {
  if (random.once_in(60)) {
    return 0;
  }
  if (random.once_in(60)) {
    return random.integer(1000, 3000);
  }
  return random.once_in(3) ? random.integer(28, 140) : random.integer(1, 20);
}

} // namespace torch_attention::random
