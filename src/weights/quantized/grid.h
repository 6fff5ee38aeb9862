#pragma once

#include <weights/quantized/floats.h>
#include <weights/quantized/group.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

/// Scales of the blocks of a matrix of rows x columns: one number for each
/// block of `block_rows` x `block_columns`, in the order of rows. The last
/// blocks may be partial.
struct Grid {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block_rows = 1;
  int64_t block_columns = 1;

  /// Blocks in a row.
  int64_t width() const {
    return divided_up(columns, block_columns);
  }

  /// Returns the shape of the scales.
  std::vector<int64_t> shape() const {
    return {divided_up(rows, block_rows), width()};
  }

  /// "blocks of 128 x 128", "rows", "groups of 64" or "one block".
  std::string text() const;
};

/// Returns the blocks that follow from the shape of the scales: one number for
/// all ([] or [1]), one for each row ([rows, 1]), or one for each block of this
/// size. None if the shape is another one.
std::optional<Grid> grid_of(
    const torch::Tensor& matrix,
    torch::IntArrayRef scales,
    std::optional<std::pair<int64_t, int64_t>> block);

/// Calls `write(from, to, index)` for each run of elements in a row that have
/// the same scale: those from offset `from` to offset `to`, and `index`, that
/// of their scale.
template <typename Write>
void for_each_run(const Grid& grid, const Write& write) {
  const auto width = grid.width();
  for (int64_t row = 0; row < grid.rows; ++row) {
    const auto first = row / grid.block_rows * width;
    const auto start = row * grid.columns;
    for (int64_t block = 0; block < width; ++block) {
      const auto begin = block * grid.block_columns;
      const auto size = std::min(grid.block_columns, grid.columns - begin);
      write(start + begin, start + begin + size, first + block);
    }
  }
}

} // namespace torch_attention::weights::quantized
