#pragma once

#include <tools/heatmap/attention_map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The number of colors of weights. A weight w has the color of
/// round(sqrt(w) * (kColors - 1)), so that small ones can be told apart.
constexpr int64_t kColors = 250;

int64_t color_of_weight(double weight);

struct Rgb {
  int red;
  int green;
  int blue;
};

/// From nearly white to dark blue.
Rgb rgb_of_color(int64_t color);

constexpr Rgb kInk{31, 41, 55};
constexpr Rgb kPaper{255, 255, 255};

enum class Anchor { kStart, kMiddle, kEnd };

/// A text of one line; x and y are those of its anchor, on the base line.
struct PictureText {
  int64_t x;
  int64_t y;
  std::string text;
  Anchor anchor = Anchor::kStart;
  /// Read from below to above.
  bool is_vertical = false;
};

/// Cells of one color in a row of a panel.
struct CellRun {
  int64_t color;
  /// The row and the first cell, from 0 on.
  int64_t row;
  int64_t column;
  int64_t count;
};

/// The weights of one head.
struct Panel {
  /// The upper left corner.
  int64_t x;
  int64_t y;
  std::vector<CellRun> runs;
};

/// A picture of all heads, in units of about a pixel.
struct PictureLayout {
  int64_t width = 0;
  int64_t height = 0;
  /// The side of a cell.
  int64_t cell = 0;
  std::vector<Panel> panels;
  std::vector<PictureText> texts;
  /// The bar of colors: its left end, top, width and height.
  int64_t bar_x = 0;
  int64_t bar_y = 0;
  int64_t bar_width = 0;
  int64_t bar_height = 0;
};

/// Puts layers below each other and heads beside each other; the heads of a
/// single layer in rows of four. Labels are beside the first panel of each row
/// and below the last one of each column.
PictureLayout lay_out(const AttentionMap& map);

} // namespace torch_attention::tools
