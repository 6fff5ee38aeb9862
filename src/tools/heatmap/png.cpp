#include <tools/heatmap/layout.h>
#include <tools/heatmap/letters.h>
#include <tools/heatmap/render.h>
#include <tools/heatmap/unicode.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace torch_attention::tools {

namespace {

/// Pixels of a unit of the layout.
constexpr int64_t kScale = 2;
constexpr int64_t kMostPixels = 12'000;
/// Places in the palette after the colors of weights.
constexpr uint8_t kPaperColor = kColors;
constexpr uint8_t kInkColor = kColors + 1;

/// Pixels of a palette.
class Pixels {
 public:
  Pixels(int64_t width, int64_t height)
      : width_(width),
        height_(height),
        values_(static_cast<size_t>(width * height), kPaperColor) {}

  void fill(
      int64_t x,
      int64_t y,
      int64_t width,
      int64_t height,
      uint8_t color) {
    for (auto row = std::max<int64_t>(y, 0);
         row < std::min(y + height, height_);
         ++row) {
      for (auto at = std::max<int64_t>(x, 0); at < std::min(x + width, width_);
           ++at) {
        values_[static_cast<size_t>(row * width_ + at)] = color;
      }
    }
  }

  int64_t width() const {
    return width_;
  }

  int64_t height() const {
    return height_;
  }

  const uint8_t* row(int64_t y) const {
    return values_.data() + y * width_;
  }

 private:
  int64_t width_;
  int64_t height_;
  std::vector<uint8_t> values_;
};

void draw_text(Pixels& pixels, const PictureText& text) {
  const auto letters = letters_of_text(text.text);
  const auto length = static_cast<int64_t>(letters.size()) * kLetterWidth;
  const auto start = text.anchor == Anchor::kStart ? 0
      : text.anchor == Anchor::kMiddle             ? length / 2
                                                   : length;
  for (size_t i = 0; i < letters.size(); ++i) {
    const auto left = static_cast<int64_t>(i) * kLetterWidth - start;
    for_each_dot(letters[i], [&](int64_t column, int64_t row) {
      // To the right of the anchor, and above its base line.
      const auto along = (left + column) * kScale;
      const auto up = (kBaseRow - row) * kScale;
      const auto x = text.x * kScale;
      const auto y = text.y * kScale;
      if (text.is_vertical) {
        pixels.fill(x - up, y - along - kScale, kScale, kScale, kInkColor);
      } else {
        pixels.fill(x + along, y - up, kScale, kScale, kInkColor);
      }
    });
  }
}

void append_number(std::string& text, uint32_t value) {
  for (const auto shift : {24, 16, 8, 0}) {
    text += static_cast<char>((value >> shift) & 0xFF);
  }
}

/// A part of a PNG file: its length, name, content and checksum.
void append_chunk(
    std::string& file,
    std::string_view name,
    std::string_view content) {
  append_number(file, static_cast<uint32_t>(content.size()));
  const auto start = file.size();
  file += name;
  file += content;
  append_number(
      file,
      static_cast<uint32_t>(::crc32_z(
          0,
          reinterpret_cast<const Bytef*>(file.data() + start),
          file.size() - start)));
}

std::string palette() {
  std::string colors;
  const auto append = [&](const Rgb& rgb) {
    colors += static_cast<char>(rgb.red);
    colors += static_cast<char>(rgb.green);
    colors += static_cast<char>(rgb.blue);
  };
  for (int64_t color = 0; color < kColors; ++color) {
    append(rgb_of_color(color));
  }
  append(kPaper);
  append(kInk);
  return colors;
}

/// The rows, each after the number of its filter: none.
std::string packed(const Pixels& pixels) {
  std::string rows;
  for (int64_t y = 0; y < pixels.height(); ++y) {
    rows += '\0';
    rows.append(
        reinterpret_cast<const char*>(pixels.row(y)),
        static_cast<size_t>(pixels.width()));
  }
  auto size = ::compressBound(static_cast<uLong>(rows.size()));
  std::string result(size, '\0');
  const auto status = ::compress2(
      reinterpret_cast<Bytef*>(result.data()),
      &size,
      reinterpret_cast<const Bytef*>(rows.data()),
      static_cast<uLong>(rows.size()),
      Z_BEST_COMPRESSION);
  TORCH_CHECK(status == Z_OK, "zlib failed with status ", status);
  result.resize(size);
  return result;
}

std::string encode(const Pixels& pixels) {
  std::string header;
  append_number(header, static_cast<uint32_t>(pixels.width()));
  append_number(header, static_cast<uint32_t>(pixels.height()));
  // 8 bits, a palette, and the only methods that there are.
  constexpr std::string_view kRest("\x08\x03\0\0\0", 5);
  header += kRest;
  std::string file = "\x89PNG\r\n\x1a\n";
  append_chunk(file, "IHDR", header);
  append_chunk(file, "PLTE", palette());
  append_chunk(file, "IDAT", packed(pixels));
  append_chunk(file, "IEND", "");
  return file;
}

} // namespace

std::string png_of(const AttentionMap& map) {
  const auto picture = lay_out(map);
  const auto width = picture.width * kScale;
  const auto height = picture.height * kScale;
  TORCH_CHECK(
      width <= kMostPixels && height <= kMostPixels,
      format_text(
          "expected at most {} pixels in a row or column, but the picture has "
          "{} by {}: choose fewer layers or heads by --layer and --head",
          kMostPixels,
          width,
          height));
  Pixels pixels(width, height);
  const auto cell = picture.cell * kScale;
  for (const auto& panel : picture.panels) {
    for (const auto& run : panel.runs) {
      pixels.fill(
          panel.x * kScale + run.column * cell,
          panel.y * kScale + run.row * cell,
          run.count * cell,
          cell,
          static_cast<uint8_t>(run.color));
    }
  }
  for (int64_t color = 0; color < picture.bar_width; ++color) {
    pixels.fill(
        (picture.bar_x + color) * kScale,
        picture.bar_y * kScale,
        kScale,
        picture.bar_height * kScale,
        static_cast<uint8_t>(color));
  }
  for (const auto& text : picture.texts) {
    draw_text(pixels, text);
  }
  return encode(pixels);
}

} // namespace torch_attention::tools
