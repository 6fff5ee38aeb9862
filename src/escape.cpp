#include <escape.h>

#include <format_text.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace torch_attention {

namespace {

/// A character of a text, or a byte that is not part of one.
struct Character {
  char32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

/// Returns the number of bytes of a character by its first one; 0 if invalid.
size_t length_by(uint8_t first) {
  if (first < 0x80U) {
    return 1;
  }
  if (first >= 0xC2U && first < 0xE0U) {
    return 2;
  }
  if (first >= 0xE0U && first < 0xF0U) {
    return 3;
  }
  return first >= 0xF0U && first < 0xF5U ? 4 : 0;
}

/// Returns the first character of a text that is not empty.
Character first_of(std::string_view text) {
  const auto first = static_cast<uint8_t>(text.front());
  const auto length = length_by(first);
  if (length == 1) {
    return {first, 1, true};
  }
  if (length == 0 || length > text.size()) {
    return {first, 1, false};
  }
  // Without the bits that encode the length.
  char32_t code = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0U) != 0x80U) {
      return {first, 1, false};
    }
    code = (code << 6U) | (byte & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kSmallest[length] || is_surrogate || code > 0x10FFFF) {
    return {first, 1, false};
  }
  return {code, length, true};
}

struct Range {
  char32_t first;
  char32_t last;
};

/// Characters that are printed as escapes.
constexpr std::array kHidden{
    Range{0x00, 0x1F}, // C0
    Range{0x7F, 0x9F}, // DEL and C1
    Range{0xAD, 0xAD}, // soft hyphen
    Range{0x34F, 0x34F}, // combining grapheme joiner
    Range{0x61C, 0x61C}, // direction mark
    Range{0x115F, 0x1160}, // fillers
    Range{0x17B4, 0x17B5},   Range{0x180B, 0x180F},
    Range{0x200B, 0x200F}, // zero width, direction
    Range{0x2028, 0x202E}, // line separators, direction
    Range{0x2060, 0x206F}, // zero width, direction
    Range{0x3164, 0x3164}, // filler
    Range{0xFE00, 0xFE0F}, // variation selectors
    Range{0xFEFF, 0xFEFF}, // byte order mark
    Range{0xFFA0, 0xFFA0}, // filler
    Range{0xFFF0, 0xFFFB}, // annotations
    Range{0xFFFE, 0xFFFF}, // noncharacters
    Range{0x1D173, 0x1D17A}, // invisible musical characters
    Range{0xE0000, 0xE0FFF}, // tags, variation selectors
};

bool is_hidden(char32_t code) {
  return std::any_of(kHidden.begin(), kHidden.end(), [=](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

std::string escape_of(const Character& character) {
  const auto code = static_cast<uint32_t>(character.code);
  if (character.valid) {
    switch (code) {
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      default:
        break;
    }
  }
  if (code <= 0xFF) {
    return format_text("\\x{:02x}", code);
  }
  return code <= 0xFFFF ? format_text("\\u{:04x}", code)
                        : format_text("\\U{:08x}", code);
}

} // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto character = first_of(text);
    if (character.valid && !is_hidden(character.code)) {
      result.append(text.substr(0, character.bytes));
    } else {
      result += escape_of(character);
    }
    text.remove_prefix(character.bytes);
  }
  return result;
}

std::string escaped_lines(std::string_view text) {
  std::string result;
  for (;;) {
    const auto end = text.find('\n');
    // Tabs at the start of a further line are indentation.
    auto line = text.substr(0, end);
    while (!result.empty() && !line.empty() && line.front() == '\t') {
      result += '\t';
      line.remove_prefix(1);
    }
    result += escaped(line);
    if (end == std::string_view::npos) {
      return result;
    }
    result += "\n  ";
    text.remove_prefix(end + 1);
  }
}

} // namespace torch_attention
