#pragma once

#include <torch_attention/weights/pretrained.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::pretrained {

/// How the angles of a patch follow from its row and column: half of the pairs
/// use the row and half the column, with frequencies theta^(-i / n) for the n
/// pairs of each half.
struct ImageRotary {
  double theta = 10000;
  /// The number of pairs for rows, and for columns; 0: a quarter of the head.
  int64_t pairs = 0;
  /// The number of pairs before them that depend on the time of a video, which
  /// do not rotate an image.
  int64_t pairs_of_time = 0;
  /// Whether the frequencies of columns are between the frequencies of rows.
  bool has_columns_between = false;
  /// Whether the pairs for columns come first.
  bool has_columns_first = false;
  /// The number of the first row and column.
  int64_t first = 0;
  /// Whether positions are the centers of patches, scaled to -2 pi to 2 pi for
  /// every size of image.
  bool goes_by_centers = false;
  /// The side to which positions of square images of all sizes are scaled; 0:
  /// not scaled.
  int64_t scaled_side = 0;
  /// The side of squares of patches that are consecutive tokens.
  int64_t square = 1;
  /// The side of windows of squares that are consecutive tokens; 0: no windows.
  int64_t window = 0;
  /// Numbers of tokens before and after the patches, which are not rotated.
  int64_t tokens_before = 0;
  int64_t tokens_after = 0;
  /// The name of the tensor with learned angles of a token before the patches;
  /// empty if there is none.
  std::string learned = {};
};

/// Returns the angles of an image of height x width patches. `learned` is (1,
/// pairs), or undefined.
RotaryAngles angles_of_image(
    const ImageRotary& rotary,
    int64_t head_dim,
    int64_t height,
    int64_t width,
    const torch::Tensor& learned);

} // namespace torch_attention::weights::pretrained
