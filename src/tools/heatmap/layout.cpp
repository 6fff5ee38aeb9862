#include <tools/heatmap/layout.h>

#include <format_text.h>
#include <tools/heatmap/unicode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace torch_attention::tools {

namespace {

constexpr int64_t kMargin = 12;
constexpr int64_t kGap = 14;
/// The width of a letter, and the height of a line.
constexpr int64_t kLetter = 7;
constexpr int64_t kLine = 18;
/// From the middle of a line to its base line.
constexpr int64_t kBase = 4;
/// The room of labels, in letters.
constexpr int64_t kLongestLabel = 20;
constexpr int64_t kMostColumns = 4;
/// Cells get smaller rather than the panels of a row wider than this together.
constexpr int64_t kWidthOfCells = 1400;
constexpr int64_t kSmallestCell = 3;
constexpr int64_t kLargestCell = 20;
/// Labels closer to each other are left out.
constexpr int64_t kClosestLabels = 11;

/// The places of panels, and their sizes.
struct PanelGrid {
  int64_t columns;
  int64_t count;
  int64_t cell;
  /// The sizes of a panel.
  int64_t width;
  int64_t height;
  /// From a panel to the next one.
  int64_t pitch_x;
  int64_t pitch_y;
  int64_t left;
  int64_t top;

  int64_t x_of(int64_t panel) const {
    return left + panel % columns * pitch_x;
  }

  int64_t y_of(int64_t panel) const {
    return top + panel / columns * pitch_y;
  }

  int64_t rows() const {
    return (count + columns - 1) / columns;
  }
};

std::string short_label(const std::string& label) {
  return cut_to_width(label, kLongestLabel);
}

/// The room of the longest label.
int64_t label_width_of(const std::vector<std::string>& labels) {
  int64_t width = 0;
  for (const auto& label : labels) {
    width = std::max(width, width_of(short_label(label)) * kLetter);
  }
  return width + kLetter;
}

std::string title_of(const AttentionMap& map, int64_t panel) {
  const auto heads = static_cast<int64_t>(map.heads.size());
  return format_text(
      "layer {}, head {}",
      map.layers[static_cast<size_t>(panel / heads)].layer,
      map.heads[static_cast<size_t>(panel % heads)]);
}

PanelGrid grid_of(const AttentionMap& map) {
  const auto T = static_cast<int64_t>(map.queries.size());
  const auto S = static_cast<int64_t>(map.keys.size());
  const auto heads = static_cast<int64_t>(map.heads.size());
  PanelGrid grid{};
  grid.columns = map.layers.size() > 1 ? heads : std::min(heads, kMostColumns);
  grid.count = heads * static_cast<int64_t>(map.layers.size());
  grid.cell = std::clamp(
      kWidthOfCells / (grid.columns * S), kSmallestCell, kLargestCell);
  grid.width = grid.cell * S;
  grid.height = grid.cell * T;
  int64_t title = 0;
  for (int64_t panel = 0; panel < grid.count; ++panel) {
    title = std::max(title, width_of(title_of(map, panel)) * kLetter);
  }
  grid.pitch_x = std::max(grid.width, title) + kGap;
  grid.pitch_y = kLine + grid.height + kGap;
  grid.left = kMargin + label_width_of(map.queries);
  // Below two lines of heading, and the panel's title.
  grid.top = kMargin + 3 * kLine;
  return grid;
}

std::vector<CellRun> runs_of(const LayerWeights& layer, int64_t head) {
  const auto weights = layer.weights[head].contiguous();
  const auto S = weights.size(1);
  const auto* values = weights.const_data_ptr<float>();
  std::vector<CellRun> runs;
  for (int64_t row = 0; row < weights.size(0); ++row) {
    const auto end = layer.causal ? row + 1 : S;
    for (int64_t column = 0; column < end; ++column) {
      const auto color = color_of_weight(values[row * S + column]);
      if (column > 0 && runs.back().color == color) {
        ++runs.back().count;
      } else {
        runs.push_back({color, row, column, 1});
      }
    }
  }
  return runs;
}

/// Calls the function with each label that has room, and its place in a panel.
template <typename Function>
void for_each_label(
    const std::vector<std::string>& labels,
    int64_t cell,
    const Function& function) {
  const auto step = (kClosestLabels + cell - 1) / cell;
  const auto count = static_cast<int64_t>(labels.size());
  for (int64_t token = 0; token < count; token += step) {
    function(
        short_label(labels[static_cast<size_t>(token)]),
        cell * token + cell / 2 + kBase);
  }
}

void add_labels(
    const AttentionMap& map,
    const PanelGrid& grid,
    PictureLayout& picture) {
  const auto add_query = [&](const std::string& label, int64_t middle) {
    for (int64_t row = 0; row < grid.rows(); ++row) {
      const auto y = grid.y_of(row * grid.columns) + middle;
      picture.texts.push_back({grid.left - kBase, y, label, Anchor::kEnd});
    }
  };
  const auto add_key = [&](const std::string& label, int64_t middle) {
    for (int64_t panel = std::max<int64_t>(grid.count - grid.columns, 0);
         panel < grid.count;
         ++panel) {
      picture.texts.push_back(
          {grid.x_of(panel) + middle,
           grid.y_of(panel) + grid.height + kBase,
           label,
           Anchor::kEnd,
           /*is_vertical=*/true});
    }
  };
  for_each_label(map.queries, grid.cell, add_query);
  for_each_label(map.keys, grid.cell, add_key);
}

/// The bar of colors and the weights that they mean, at the lower left.
void add_bar(
    const AttentionMap& map,
    const PanelGrid& grid,
    PictureLayout& picture) {
  constexpr int64_t kBarHeight = 10;
  constexpr std::array<double, 5> kMarks{0, 0.05, 0.25, 0.5, 1};
  const auto labels_end =
      grid.y_of(grid.count - 1) + grid.height + label_width_of(map.keys);
  picture.bar_x = grid.left;
  picture.bar_y = labels_end + kGap;
  picture.bar_width = kColors;
  picture.bar_height = kBarHeight;
  for (const auto mark : kMarks) {
    picture.texts.push_back(
        {picture.bar_x + color_of_weight(mark),
         picture.bar_y + kBarHeight + kLine - kBase,
         format_text("{}", mark),
         Anchor::kMiddle});
  }
}

} // namespace

int64_t color_of_weight(double weight) {
  const auto root = std::sqrt(std::clamp(weight, 0.0, 1.0));
  return std::llround(root * static_cast<double>(kColors - 1));
}

Rgb rgb_of_color(int64_t color) {
  struct Stop {
    double at;
    std::array<double, 3> rgb;
  };
  constexpr std::array<Stop, 4> kStops{
      {{0, {240, 244, 249}},
       {0.35, {156, 196, 228}},
       {0.7, {43, 110, 178}},
       {1, {8, 36, 82}}}};
  const auto at = static_cast<double>(color) / (kColors - 1);
  size_t next = 1;
  while (next + 1 < kStops.size() && kStops[next].at < at) {
    ++next;
  }
  const auto& from = kStops[next - 1];
  const auto& to = kStops[next];
  const auto share = (at - from.at) / (to.at - from.at);
  const auto mix = [&](size_t part) {
    return static_cast<int>(
        std::lround(from.rgb[part] + share * (to.rgb[part] - from.rgb[part])));
  };
  return {mix(0), mix(1), mix(2)};
}

PictureLayout lay_out(const AttentionMap& map) {
  const auto grid = grid_of(map);
  PictureLayout picture;
  picture.cell = grid.cell;
  constexpr const char* kHint = "Each row shows what its token attends to.";
  picture.texts.push_back(
      {kMargin, kMargin + kLine - kBase, cut_to_width(map.title, 100)});
  picture.texts.push_back({kMargin, kMargin + 2 * kLine - kBase, kHint});
  const auto heads = static_cast<int64_t>(map.heads.size());
  for (int64_t panel = 0; panel < grid.count; ++panel) {
    const auto& layer = map.layers[static_cast<size_t>(panel / heads)];
    picture.panels.push_back(
        {grid.x_of(panel),
         grid.y_of(panel),
         runs_of(layer, map.heads[static_cast<size_t>(panel % heads)])});
    picture.texts.push_back(
        {grid.x_of(panel), grid.y_of(panel) - kBase - 1, title_of(map, panel)});
  }
  add_labels(map, grid, picture);
  add_bar(map, grid, picture);
  int64_t right = picture.bar_x + picture.bar_width;
  for (const auto& text : picture.texts) {
    if (text.anchor == Anchor::kStart) {
      right = std::max(right, text.x + width_of(text.text) * kLetter);
    }
  }
  picture.width =
      kMargin + std::max(right, grid.left + grid.columns * grid.pitch_x - kGap);
  picture.height = picture.bar_y + picture.bar_height + kLine + kMargin;
  return picture;
}

} // namespace torch_attention::tools
