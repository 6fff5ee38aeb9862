#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <cstdint>

namespace torch_attention {

/// The windows of an image within which its tokens attend to each other, for
/// `functional::to_image_windows` and `WindowBias`.
///
/// Example, as in every second layer of a Swin:
/// ```
/// ImageWindowOptions(7, 7).shift(3)
/// ```
struct TORCH_ATTENTION_API ImageWindowOptions {
  ImageWindowOptions(int64_t height, int64_t width);

  /// number of rows of tokens in a window.
  TORCH_ARG(int64_t, height);

  /// number of tokens in each row.
  TORCH_ARG(int64_t, width);

  /// number of rows and columns by which the image is rolled up and to the left
  /// before it is divided, less than `height` and `width`: the first ones come
  /// last. Default: 0
  TORCH_ARG(int64_t, shift) = 0;
};

} // namespace torch_attention
