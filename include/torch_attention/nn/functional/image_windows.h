#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/image_windows.h>

#include <cstdint>

namespace torch_attention::functional {

/// Divides images into windows of h x w tokens, so that attention computes each
/// window as a sequence (Liu et al. 2021, "Swin Transformer";
/// `window_partition` of `transformers`): x (B, H, W, C) -> (B * n, h * w, C),
/// the n windows of an image row by row, and the tokens of a window row by row.
/// First zeros are appended below and on the right, until both sides are
/// multiples of the window's, then the image is rolled by `shift`. The zeros
/// are tokens that the others see, as in Swin and SAM. Differentiable.
///
/// Throws c10::Error if x is not dense and of four dimensions, or if the
/// options are not positive or the shift is not less than the window.
///
/// Example, a layer of Swin:
/// ```
/// namespace F = torch_attention::functional;
/// const auto windows = ImageWindowOptions(7, 7).shift(3);
/// auto tokens = attention(
///     F::to_image_windows(x, windows),
///     ForwardOptions()
///         .bias(window_bias())
///         .mask(F::image_window_mask(B, H, W, windows)));
/// auto image = F::from_image_windows(tokens, H, W, windows);
/// ```
TORCH_ATTENTION_API torch::Tensor to_image_windows(
    const torch::Tensor& x,
    const ImageWindowOptions& options);

/// Puts windows together again: (B * n, h * w, C) -> images (B, height, width,
/// C). The inverse of `to_image_windows` for images of this size.
/// Differentiable.
///
/// Throws c10::Error if the windows are not of such images.
TORCH_ATTENTION_API torch::Tensor from_image_windows(
    const torch::Tensor& windows,
    int64_t height,
    int64_t width,
    const ImageWindowOptions& options);

/// Returns the mask of the windows of `batch_size` images of height x width
/// tokens, bool (batch_size * n, 1, h * w, h * w) on the CPU; true hides. In
/// rolled images the last windows of rows and columns have tokens from opposite
/// sides, which do not see each other. Without a shift it hides nothing.
///
/// Throws c10::Error for negative sizes, and for options as above.
TORCH_ATTENTION_API torch::Tensor image_window_mask(
    int64_t batch_size,
    int64_t height,
    int64_t width,
    const ImageWindowOptions& options);

} // namespace torch_attention::functional
