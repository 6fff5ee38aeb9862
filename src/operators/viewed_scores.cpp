#include <operators/viewed_scores.h>

#include <operators/broadcast.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace torch_attention::operators {

namespace {

/// Returns the sizes of a view with -1 resolved; nothing if they do not fit the
/// scores.
std::optional<Sizes> sizes_of_view(
    torch::IntArrayRef sizes,
    const Sizes& scores) {
  const auto numel = c10::multiply_integers(scores);
  auto known = int64_t{1};
  auto result = sizes.vec();
  int64_t* open = nullptr;
  for (auto& size : result) {
    if (size >= 0) {
      known *= size;
    } else if (open != nullptr) {
      return std::nullopt;
    } else {
      open = &size;
    }
  }
  if (open != nullptr) {
    *open = known == 0 ? 0 : numel / known;
    known *= *open;
  }
  if (known != numel || numel == 0) {
    return std::nullopt;
  }
  return result;
}

/// Returns the number of dimensions into which a view splits each leading
/// dimension of the scores; nothing if it does more than split them. The view
/// may have further dimensions of size 1.
std::optional<std::vector<size_t>> splits_of(
    const Sizes& scores,
    const Sizes& view) {
  if (view.size() < 2 ||
      !std::equal(scores.end() - 2, scores.end(), view.end() - 2)) {
    return std::nullopt;
  }
  std::vector<size_t> splits;
  size_t next = 0;
  const auto end = view.size() - 2;
  for (size_t i = 0; i < scores.size() - 2; ++i) {
    const auto first = next;
    auto product = int64_t{1};
    while (product < scores[i] && next < end) {
      product *= view[next++];
    }
    if (product != scores[i]) {
      return std::nullopt;
    }
    splits.push_back(next - first);
  }
  const bool ones_are_left = std::all_of(
      view.begin() + static_cast<std::ptrdiff_t>(next),
      view.end() - 2,
      [](int64_t size) { return size == 1; });
  return ones_are_left ? std::make_optional(splits) : std::nullopt;
}

/// Returns the sizes of x in the view; nothing if x does not broadcast to the
/// scores.
std::optional<Sizes> split_sizes(
    const torch::Tensor& x,
    const Sizes& scores,
    const Sizes& view,
    const std::vector<size_t>& splits) {
  const auto missing = static_cast<int64_t>(scores.size()) - x.dim();
  if (x.dim() < 2 || missing < 0) {
    return std::nullopt;
  }
  Sizes sizes;
  size_t next = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) - missing;
    const auto own = dim < 0 ? 1 : x.size(dim);
    if (own != 1 && own != scores[i]) {
      return std::nullopt;
    }
    for (size_t part = 0; part < splits[i]; ++part) {
      sizes.push_back(own == 1 ? 1 : view[next + part]);
    }
    next += splits[i];
  }
  sizes.resize(view.size() - 2, 1);
  sizes.push_back(x.size(-2));
  sizes.push_back(x.size(-1));
  return sizes;
}

std::optional<Sizes> sizes_in_view(
    const torch::Tensor& x,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    torch::IntArrayRef sizes,
    torch::IntArrayRef back) {
  const auto scores = product_sizes(query, transposed_key);
  if (!scores || sizes_of_view(back, *scores) != scores) {
    return std::nullopt;
  }
  const auto view = sizes_of_view(sizes, *scores);
  const auto splits = view ? splits_of(*scores, *view) : std::nullopt;
  return splits ? split_sizes(x, *scores, *view, *splits) : std::nullopt;
}

} // namespace

torch::Tensor in_view(
    const torch::Tensor& x,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    torch::IntArrayRef sizes,
    torch::IntArrayRef back) {
  const auto split = sizes_in_view(x, query, transposed_key, sizes, back);
  return split ? x.reshape(*split)
               : at::empty({0}, x.options().dtype(torch::kByte));
}

torch::Tensor out_of_view(
    const torch::Tensor& output,
    const torch::Tensor& query,
    const torch::Tensor& transposed_key) {
  auto sizes = *product_sizes(query, transposed_key);
  sizes.back() = output.size(-1);
  return output.reshape(sizes);
}

} // namespace torch_attention::operators
