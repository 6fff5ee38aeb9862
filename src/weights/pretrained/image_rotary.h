#pragma once

#include <torch_attention/weights/pretrained.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::pretrained {

/// The way to the angles of a patch from its row and its column: half of
/// the pairs turn by one of them, with frequencies theta^(-i / pairs of a
/// half), the other half by the other.
struct ImageRotary {
  double theta = 10000;
  /// Columns have the frequencies between those of rows.
  bool has_columns_between = false;
  /// Columns come before rows.
  bool has_columns_first = false;
  /// The number of the first row and column.
  int64_t first = 0;
  /// Places are those of the patches' centers, from -pi * 2 to pi * 2, whatever
  /// the size of the image.
  bool goes_by_centers = false;
  /// The patches of squares of so many to a side come after each other.
  int64_t square = 1;
  /// The squares of windows of so many to a side do, too. 0: no windows
  int64_t window = 0;
  /// Tokens before and after the patches, which are not rotated.
  int64_t tokens_before = 0;
  int64_t tokens_after = 0;
  /// The tensor in the model with angles of one token before the patches, which
  /// are learned.
  std::string learned = {};
};

/// The angles of an image of so many patches; `learned`, if there is such a
/// tensor, is (1, pairs).
RotaryAngles angles_of_image(
    const ImageRotary& rotary,
    int64_t head_dim,
    int64_t height,
    int64_t width,
    const torch::Tensor& learned);

} // namespace torch_attention::weights::pretrained
