#include <weights/quantized/grid.h>

#include <format_text.h>

namespace torch_attention::weights::quantized {

std::string Grid::text() const {
  const bool is_whole_row = block_columns >= columns;
  if (is_whole_row && block_rows >= rows) {
    return "one block";
  }
  if (block_rows == 1) {
    return is_whole_row ? "rows" : format_text("groups of {}", block_columns);
  }
  return format_text("blocks of {} x {}", block_rows, block_columns);
}

std::optional<Grid> grid_of(
    const torch::Tensor& matrix,
    torch::IntArrayRef scales,
    std::optional<std::pair<int64_t, int64_t>> block) {
  Grid grid;
  grid.rows = matrix.size(0);
  grid.columns = matrix.size(1);
  grid.block_columns = grid.columns;
  if (block) {
    auto in_blocks = grid;
    in_blocks.block_rows = block->first;
    in_blocks.block_columns = block->second;
    if (scales == torch::IntArrayRef(in_blocks.shape())) {
      return in_blocks;
    }
  }
  // The number of rows may be one: the scale is that of the row, too.
  if (scales == torch::IntArrayRef({grid.rows, 1})) {
    return grid;
  }
  if (scales.empty() || scales == torch::IntArrayRef({1})) {
    grid.block_rows = grid.rows;
    return grid;
  }
  return std::nullopt;
}

} // namespace torch_attention::weights::quantized
