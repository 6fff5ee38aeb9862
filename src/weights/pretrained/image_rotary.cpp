#include <weights/pretrained/image_rotary.h>

#include <check.h>

#include <cmath>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// The patches in the order of the model's tokens.
struct Patches {
  /// Their indices in row-major order: int64 (height * width).
  torch::Tensor order;
  /// 0 and the ends of the windows: int64. Undefined without windows.
  torch::Tensor ends;
};

Patches order_of_patches(
    const ImageRotary& rotary,
    int64_t height,
    int64_t width) {
  const auto side = rotary.square;
  const auto squares = torch::arange(height * width, torch::kLong)
                           .view({height / side, side, width / side, side})
                           .transpose(1, 2);
  if (rotary.window == 0) {
    return {squares.flatten(), {}};
  }
  std::vector<torch::Tensor> windows;
  std::vector<int64_t> ends{0};
  for (const auto& rows : squares.split(rotary.window, 0)) {
    for (const auto& window : rows.split(rotary.window, 1)) {
      windows.push_back(window.flatten());
      ends.push_back(ends.back() + windows.back().numel());
    }
  }
  return {torch::cat(windows), torch::tensor(ends, torch::kLong)};
}

/// Returns the positions of `count` rows or columns, float64.
torch::Tensor places_of(const ImageRotary& rotary, int64_t count) {
  auto numbers = torch::arange(count, torch::kDouble);
  if (rotary.scaled_side > 0) {
    numbers *=
        static_cast<double>(rotary.scaled_side) / static_cast<double>(count);
  }
  return rotary.goes_by_centers ? (2 * (numbers + 0.5) / count - 1) * (2 * M_PI)
                                : numbers + rotary.first;
}

} // namespace

RotaryAngles angles_of_image(
    const ImageRotary& rotary,
    int64_t head_dim,
    int64_t height,
    int64_t width,
    const torch::Tensor& learned) {
  constexpr int64_t kMost = 1 << 20;
  TORCH_ATTENTION_CHECK(
      height > 0 && width > 0 && height <= kMost / width &&
          height % rotary.square == 0 && width % rotary.square == 0,
      "expected the image's height and width in patches, multiples of {} "
      "of at most {} patches, but got {} and {}",
      rotary.square,
      kMost,
      height,
      width);
  TORCH_ATTENTION_CHECK(
      rotary.scaled_side == 0 || height == width,
      "expected a square image, whose sides the model scales to {}, but got {} "
      "and {}",
      rotary.scaled_side,
      height,
      width);
  TORCH_ATTENTION_CHECK(
      rotary.pairs > 0 || head_dim % 4 == 0,
      "expected heads of a multiple of 4, but got {}",
      head_dim);
  const auto pairs = rotary.pairs > 0 ? rotary.pairs : head_dim / 4;
  const auto half = static_cast<double>(pairs);
  const auto exponents = torch::arange(pairs, torch::kDouble) / half;
  const auto frequencies = torch::pow(rotary.theta, -exponents);
  const auto between = rotary.has_columns_between
      ? frequencies * std::pow(rotary.theta, -1 / (2 * half))
      : frequencies;
  const auto [patches, ends] = order_of_patches(rotary, height, width);
  const auto rows = places_of(rotary, height)
                        .index_select(0, patches.div(width, "floor"))
                        .outer(frequencies);
  const auto columns = places_of(rotary, width)
                           .index_select(0, patches.remainder(width))
                           .outer(between);
  auto angles = rotary.has_columns_first ? torch::cat({columns, rows}, -1)
                                         : torch::cat({rows, columns}, -1);
  angles = torch::constant_pad_nd(angles, {rotary.pairs_of_time, 0});
  const auto still = [&](int64_t tokens) {
    return torch::zeros({tokens, angles.size(1)}, torch::kDouble);
  };
  angles = torch::cat(
      {learned.defined() ? learned.to(torch::kCPU, torch::kDouble)
                         : still(rotary.tokens_before),
       angles,
       still(rotary.tokens_after)});
  return {angles.cos(), angles.sin(), ends};
}

} // namespace torch_attention::weights::pretrained
