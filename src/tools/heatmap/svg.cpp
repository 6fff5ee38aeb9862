#include <tools/heatmap/layout.h>
#include <tools/heatmap/render.h>

#include <format_text.h>

#include <map>

namespace torch_attention::tools {

namespace {

std::string escaped_for_xml(const std::string& text) {
  std::string result;
  for (const auto letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string hex_of(const Rgb& rgb) {
  return format_text("#{:02x}{:02x}{:02x}", rgb.red, rgb.green, rgb.blue);
}

std::string svg_text(const PictureText& text) {
  const auto* anchor = text.anchor == Anchor::kStart ? ""
      : text.anchor == Anchor::kMiddle               ? " text-anchor=\"middle\""
                                                     : " text-anchor=\"end\"";
  const auto place = text.is_vertical
      ? format_text(
            "transform=\"translate({} {}) rotate(-90)\"", text.x, text.y)
      : format_text("x=\"{}\" y=\"{}\"", text.x, text.y);
  return format_text(
      "<text {}{}>{}</text>\n", place, anchor, escaped_for_xml(text.text));
}

/// The cells of a panel are strokes, one path for each color.
std::string svg_panel(const Panel& panel, int64_t cell) {
  std::map<int64_t, std::string> paths;
  for (const auto& run : panel.runs) {
    paths[run.color] +=
        format_text("M{} {}h{}", run.column, run.row, run.count);
  }
  auto result = format_text(
      "<g transform=\"translate({} {}) scale({}) translate(0 .5)\">\n",
      panel.x,
      panel.y,
      cell);
  for (const auto& [color, path] : paths) {
    result += format_text(
        "<path stroke=\"{}\" d=\"{}\"/>\n", hex_of(rgb_of_color(color)), path);
  }
  return result + "</g>\n";
}

std::string svg_bar(const PictureLayout& picture) {
  std::string result;
  for (int64_t color = 0; color < picture.bar_width; ++color) {
    result += format_text(
        "<path stroke=\"{}\" stroke-width=\"{}\" d=\"M{} {}h1\"/>\n",
        hex_of(rgb_of_color(color)),
        picture.bar_height,
        picture.bar_x + color,
        picture.bar_y + picture.bar_height / 2);
  }
  return result;
}

} // namespace

std::string svg_of(const AttentionMap& map) {
  check_map(map);
  const auto picture = lay_out(map);
  auto svg = format_text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"Attention of {2}\" "
      "font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\" "
      "font-size=\"11.5\" fill=\"{3}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"{4}\"/>\n"
      "<g fill=\"none\" shape-rendering=\"crispEdges\">\n",
      picture.width,
      picture.height,
      escaped_for_xml(map.title),
      hex_of(kInk),
      hex_of(kPaper));
  for (const auto& panel : picture.panels) {
    svg += svg_panel(panel, picture.cell);
  }
  svg += svg_bar(picture) + "</g>\n";
  for (const auto& text : picture.texts) {
    svg += svg_text(text);
  }
  return svg + "</svg>\n";
}

} // namespace torch_attention::tools
