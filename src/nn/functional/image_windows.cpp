#include <torch_attention/nn/functional/image_windows.h>

#include <check.h>
#include <nn/checks.h>

#include <algorithm>

namespace torch_attention::functional {

namespace {

/// The largest side of an image and of a window.
constexpr int64_t kMostOfSide = int64_t{1} << 20;

void check_windows(const char* name, const ImageWindowOptions& options) {
  checks::check_positive(name, "height", options.height());
  checks::check_positive(name, "width", options.width());
  TORCH_ATTENTION_CHECK(
      std::max(options.height(), options.width()) <= kMostOfSide,
      "{}: expected windows of at most {} rows and columns, but got {} x {}",
      name,
      kMostOfSide,
      options.height(),
      options.width());
  TORCH_ATTENTION_CHECK(
      options.shift() >= 0 &&
          options.shift() < std::min(options.height(), options.width()),
      "{}: expected a shift >= 0 and less than the window of {} x {}, but got "
      "{}",
      name,
      options.height(),
      options.width(),
      options.shift());
}

void check_image(const char* name, int64_t height, int64_t width) {
  TORCH_ATTENTION_CHECK(
      height >= 0 && width >= 0 && std::max(height, width) <= kMostOfSide,
      "{}: expected an image of 0 to {} rows and columns, but got {} x {}",
      name,
      kMostOfSide,
      height,
      width);
}

int64_t windows_of_side(int64_t side, int64_t window) {
  return (side + window - 1) / window;
}

/// Numbers of windows above each other and next to each other.
struct Grid {
  int64_t rows;
  int64_t columns;

  Grid(int64_t height, int64_t width, const ImageWindowOptions& options)
      : rows(windows_of_side(height, options.height())),
        columns(windows_of_side(width, options.width())) {}
};

/// Returns which of three bands each row of a padded and rolled image is in:
/// those of full windows, and the two parts of the last window.
torch::Tensor bands_of(int64_t side, int64_t window, int64_t shift) {
  const auto rows = torch::arange(side, torch::kLong);
  return (rows >= side - window).to(torch::kLong) +
      (rows >= side - shift).to(torch::kLong);
}

} // namespace

torch::Tensor to_image_windows(
    const torch::Tensor& x,
    const ImageWindowOptions& options) {
  constexpr auto* kName = "to_image_windows";
  check_windows(kName, options);
  TORCH_CHECK(x.defined(), kName, ": x is undefined");
  checks::check_dense(kName, "x", x);
  TORCH_ATTENTION_CHECK(
      x.dim() == 4,
      "{}: expected x of shape (B, H, W, C), but got {}",
      kName,
      x.sizes());
  const auto B = x.size(0);
  const auto C = x.size(3);
  const auto h = options.height();
  const auto w = options.width();
  check_image(kName, x.size(1), x.size(2));
  const Grid grid(x.size(1), x.size(2), options);
  auto image = torch::constant_pad_nd(
      x, {0, 0, 0, grid.columns * w - x.size(2), 0, grid.rows * h - x.size(1)});
  if (options.shift() > 0) {
    image = image.roll({-options.shift(), -options.shift()}, {1, 2});
  }
  return image.reshape({B, grid.rows, h, grid.columns, w, C})
      .transpose(2, 3)
      .reshape({B * grid.rows * grid.columns, h * w, C});
}

torch::Tensor from_image_windows(
    const torch::Tensor& windows,
    int64_t height,
    int64_t width,
    const ImageWindowOptions& options) {
  constexpr auto* kName = "from_image_windows";
  check_windows(kName, options);
  check_image(kName, height, width);
  TORCH_CHECK(windows.defined(), kName, ": windows are undefined");
  checks::check_dense(kName, "windows", windows);
  const auto h = options.height();
  const auto w = options.width();
  const Grid grid(height, width, options);
  const auto n = grid.rows * grid.columns;
  TORCH_ATTENTION_CHECK(
      windows.dim() == 3 && windows.size(1) == h * w && n > 0 &&
          windows.size(0) % n == 0,
      "{}: expected windows of shape (B * {}, {}, C) for images of {} x {}, "
      "but got {}",
      kName,
      n,
      h * w,
      height,
      width,
      windows.sizes());
  const auto B = windows.size(0) / n;
  const auto C = windows.size(2);
  auto image = windows.reshape({B, grid.rows, grid.columns, h, w, C})
                   .transpose(2, 3)
                   .reshape({B, grid.rows * h, grid.columns * w, C});
  if (options.shift() > 0) {
    image = image.roll({options.shift(), options.shift()}, {1, 2});
  }
  return image.slice(1, 0, height).slice(2, 0, width);
}

torch::Tensor image_window_mask(
    int64_t batch_size,
    int64_t height,
    int64_t width,
    const ImageWindowOptions& options) {
  constexpr auto* kName = "image_window_mask";
  check_windows(kName, options);
  check_image(kName, height, width);
  TORCH_ATTENTION_CHECK(
      batch_size >= 0,
      "{}: expected a batch size >= 0, but got {}",
      kName,
      batch_size);
  const Grid grid(height, width, options);
  const auto shift = options.shift();
  const auto tokens = options.height() * options.width();
  // Without a shift the last windows are whole.
  const auto rows =
      bands_of(grid.rows * options.height(), options.height(), shift);
  const auto columns =
      bands_of(grid.columns * options.width(), options.width(), shift);
  const auto regions =
      to_image_windows(
          (rows.unsqueeze(1) * 3 + columns).unsqueeze(0).unsqueeze(-1),
          ImageWindowOptions(options).shift(0))
          .view({grid.rows * grid.columns, tokens});
  return regions.unsqueeze(1)
      .ne(regions.unsqueeze(2))
      .unsqueeze(1)
      .repeat({batch_size, 1, 1, 1});
}

} // namespace torch_attention::functional
