#include <tools/heatmap/layout.h>

#include <check.h>
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
constexpr int64_t kMostCells = 20'000'000;
/// Labels closer to each other are left out.
constexpr int64_t kClosestLabels = 11;

/// The places of panels, and their sizes.
struct PanelGrid {
  int64_t columns;
  int64_t count;
  int64_t cell;
  int64_t side;
  /// From a panel to the next one.
  int64_t pitch_x;
  int64_t pitch_y;
  int64_t label_width;
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

std::string label_of(const AttentionMap& map, int64_t token) {
  return cut_to_width(map.labels[static_cast<size_t>(token)], kLongestLabel);
}

std::string title_of(const AttentionMap& map, int64_t panel) {
  const auto heads = static_cast<int64_t>(map.heads.size());
  return format_text(
      "layer {}, head {}",
      map.layers[static_cast<size_t>(panel / heads)].layer,
      map.heads[static_cast<size_t>(panel % heads)]);
}

PanelGrid grid_of(const AttentionMap& map) {
  const auto T = static_cast<int64_t>(map.labels.size());
  const auto heads = static_cast<int64_t>(map.heads.size());
  PanelGrid grid{};
  grid.columns = map.layers.size() > 1 ? heads : std::min(heads, kMostColumns);
  grid.count = heads * static_cast<int64_t>(map.layers.size());
  grid.cell = std::clamp(
      kWidthOfCells / (grid.columns * T), kSmallestCell, kLargestCell);
  grid.side = grid.cell * T;
  int64_t title = 0;
  for (int64_t panel = 0; panel < grid.count; ++panel) {
    title = std::max(title, width_of(title_of(map, panel)) * kLetter);
  }
  int64_t label = 0;
  for (int64_t token = 0; token < T; ++token) {
    label = std::max(label, width_of(label_of(map, token)) * kLetter);
  }
  grid.label_width = label + kLetter;
  grid.pitch_x = std::max(grid.side, title) + kGap;
  grid.pitch_y = kLine + grid.side + kGap;
  grid.left = kMargin + grid.label_width;
  // Below two lines of heading, and the panel's title.
  grid.top = kMargin + 3 * kLine;
  return grid;
}

std::vector<CellRun> runs_of(const LayerWeights& layer, int64_t head) {
  const auto weights = layer.weights[head].contiguous();
  const auto T = weights.size(0);
  const auto* values = weights.const_data_ptr<float>();
  std::vector<CellRun> runs;
  for (int64_t row = 0; row < T; ++row) {
    const auto end = layer.causal ? row + 1 : T;
    for (int64_t column = 0; column < end; ++column) {
      const auto color = color_of_weight(values[row * T + column]);
      if (column > 0 && runs.back().color == color) {
        ++runs.back().count;
      } else {
        runs.push_back({color, row, column, 1});
      }
    }
  }
  return runs;
}

void add_labels(
    const AttentionMap& map,
    const PanelGrid& grid,
    PictureLayout& picture) {
  const auto T = static_cast<int64_t>(map.labels.size());
  const auto step = (kClosestLabels + grid.cell - 1) / grid.cell;
  for (int64_t token = 0; token < T; token += step) {
    const auto text = label_of(map, token);
    const auto middle = grid.cell * token + grid.cell / 2 + kBase;
    for (int64_t row = 0; row < grid.rows(); ++row) {
      const auto first = row * grid.columns;
      picture.texts.push_back(
          {grid.left - kBase, grid.y_of(first) + middle, text, Anchor::kEnd});
    }
    for (int64_t panel = std::max<int64_t>(grid.count - grid.columns, 0);
         panel < grid.count;
         ++panel) {
      picture.texts.push_back(
          {grid.x_of(panel) + middle,
           grid.y_of(panel) + grid.side + kBase,
           text,
           Anchor::kEnd,
           /*is_vertical=*/true});
    }
  }
}

/// The bar of colors and the weights that they mean, at the lower left.
void add_bar(const PanelGrid& grid, PictureLayout& picture) {
  constexpr int64_t kBarHeight = 10;
  constexpr std::array<double, 5> kMarks{0, 0.05, 0.25, 0.5, 1};
  const auto labels_end =
      grid.y_of(grid.count - 1) + grid.side + grid.label_width;
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
  const auto T = static_cast<int64_t>(map.labels.size());
  TORCH_ATTENTION_CHECK(
      grid.count * T * T <= kMostCells,
      "expected at most {} weights in a picture, but got {}: choose fewer "
      "layers or heads by --layer and --head",
      kMostCells,
      grid.count * T * T);
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
  add_bar(grid, picture);
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
