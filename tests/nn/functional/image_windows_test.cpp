// Windows of images.

#include <support/close.h>
#include <support/test.h>

#include <torch_attention/torch_attention.h>

#include <algorithm>
#include <random>

namespace image_windows_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

/// Sizes of images, and their windows.
struct Case {
  int64_t B;
  int64_t height;
  int64_t width;
  ImageWindowOptions windows;
};

Case draw_case(std::mt19937& random) {
  const auto draw = [&](int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(random);
  };
  const auto h = draw(1, 5);
  const auto w = draw(1, 5);
  return {
      draw(1, 3),
      draw(1, 11),
      draw(1, 11),
      ImageWindowOptions(h, w).shift(draw(0, std::min(h, w) - 1))};
}

int64_t rounded_up(int64_t side, int64_t window) {
  return (side + window - 1) / window * window;
}

/// Where a token of a window is in the image.
struct Place {
  int64_t row;
  int64_t column;
};

Place place_of(const Case& drawn, int64_t window, int64_t token) {
  const auto h = drawn.windows.height();
  const auto w = drawn.windows.width();
  const auto columns = rounded_up(drawn.width, w) / w;
  const auto row = window / columns * h + token / w + drawn.windows.shift();
  const auto column = window % columns * w + token % w + drawn.windows.shift();
  return {
      row % rounded_up(drawn.height, h), column % rounded_up(drawn.width, w)};
}

} // namespace

TEST_CASE("Windows have the tokens of an image by rows, and zeros after them") {
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    const auto drawn = draw_case(random);
    const auto& windows = drawn.windows;
    const auto x = torch::arange(1, 1 + drawn.B * drawn.height * drawn.width)
                       .view({drawn.B, drawn.height, drawn.width, 1});
    const auto found = F::to_image_windows(x, windows);
    const auto tokens = windows.height() * windows.width();
    const auto n = rounded_up(drawn.height, windows.height()) *
        rounded_up(drawn.width, windows.width()) / tokens;
    REQUIRE(found.sizes() == torch::IntArrayRef({drawn.B * n, tokens, 1}));
    for (int64_t at = 0; at < drawn.B * n * tokens; ++at) {
      const auto place = place_of(drawn, at / tokens % n, at % tokens);
      const bool is_inside =
          place.row < drawn.height && place.column < drawn.width;
      const auto expected = is_inside
          ? x[at / tokens / n][place.row][place.column].item<int64_t>()
          : 0;
      CHECK(found[at / tokens][at % tokens].item<int64_t>() == expected);
    }
    CHECK_THAT(
        F::from_image_windows(found, drawn.height, drawn.width, windows),
        IsEqualTo(x));
  }
}

TEST_CASE("Tokens from opposite sides of an image do not see each other") {
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) {
    const auto drawn = draw_case(random);
    const auto& windows = drawn.windows;
    const auto mask =
        F::image_window_mask(drawn.B, drawn.height, drawn.width, windows);
    const auto tokens = windows.height() * windows.width();
    const auto n = mask.size(0) / drawn.B;
    REQUIRE(
        mask.sizes() == torch::IntArrayRef({drawn.B * n, 1, tokens, tokens}));
    const auto hidden = mask.accessor<bool, 4>();
    const auto shift = windows.shift();
    for (int64_t window = 0; window < drawn.B * n; ++window) {
      for (int64_t pair = 0; pair < tokens * tokens; ++pair) {
        const auto query = place_of(drawn, window % n, pair / tokens);
        const auto key = place_of(drawn, window % n, pair % tokens);
        // The rows and columns that came from the beginning.
        const bool differs = (query.row < shift) != (key.row < shift) ||
            (query.column < shift) != (key.column < shift);
        CHECK(hidden[window][0][pair / tokens][pair % tokens] == differs);
      }
    }
  }
}

TEST_CASE("Attention within windows is that of each window alone") {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 8, 32, 2).causal(false).qkv_bias(true));
  attention->eval();
  WindowBias bias(WindowBiasOptions(2, 3, 4));
  bias->relative_position_bias_table.normal_();
  const auto x = torch::randn({2, 7, 6, 8});
  const auto windows = ImageWindowOptions(3, 4).shift(2);
  const auto output = F::from_image_windows(
      attention(
          F::to_image_windows(x, windows),
          ForwardOptions().bias(bias()).mask(
              F::image_window_mask(2, 7, 6, windows))),
      7,
      6,
      windows);
  // The first window of the image before it is rolled: rows 2 to 4, columns 2
  // to 5.
  const auto alone = attention(
      x.slice(1, 2, 5).slice(2, 2, 6).flatten(1, 2),
      ForwardOptions().bias(bias()));
  CHECK_THAT(
      output.slice(1, 2, 5).slice(2, 2, 6).flatten(1, 2), IsCloseTo(alone));
}

TEST_CASE("Windows of images have gradients") {
  const auto x = torch::randn({1, 5, 4, 2}).requires_grad_();
  const auto windows = ImageWindowOptions(2, 3).shift(1);
  const auto y =
      F::from_image_windows(F::to_image_windows(x, windows), 5, 4, windows);
  y.mul(x.detach()).sum().backward();
  CHECK_THAT(x.grad(), IsEqualTo(x.detach()));
}

TEST_CASE("Windows of images refuse sizes that do not fit") {
  const auto x = torch::zeros({2, 4, 6, 3});
  const auto windows = ImageWindowOptions(2, 3);
  THROWS_WITH(
      F::to_image_windows(x[0], windows),
      "to_image_windows: expected x of shape (B, H, W, C), but got [4, 6, 3]");
  THROWS_WITH(
      F::to_image_windows(torch::Tensor(), windows),
      "to_image_windows: x is undefined");
  THROWS_WITH(F::to_image_windows(x, ImageWindowOptions(0, 3)), "height");
  THROWS_WITH(
      F::to_image_windows(x, ImageWindowOptions(windows).shift(2)),
      "to_image_windows: expected a shift >= 0 and less than the window of 2 x "
      "3, but got 2");
  THROWS_WITH(
      F::from_image_windows(torch::zeros({9, 6, 3}), 4, 6, windows),
      "from_image_windows: expected windows of shape (B * 4, 6, C) for images "
      "of 4 x 6, but got [9, 6, 3]");
  THROWS_WITH(
      F::image_window_mask(-1, 4, 6, windows),
      "image_window_mask: expected a batch size >= 0, but got -1");
  THROWS_WITH(
      F::image_window_mask(1, -4, 6, windows),
      "expected an image of 0 to 1048576 rows and columns, but got -4 x 6");
}

} // namespace image_windows_test
