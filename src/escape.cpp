#include <escape.h>

#include <format_text.h>
#include <utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace torch_attention {

namespace {

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

std::string escape_of_byte(char byte) {
  return format_text("\\x{:02x}", static_cast<unsigned char>(byte));
}

std::string escape_of(char32_t character) {
  switch (character) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  const auto code = static_cast<uint32_t>(character);
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
    const auto character = first_character(text);
    if (!character.is_valid) {
      result += escape_of_byte(text.front());
      text.remove_prefix(1);
      continue;
    }
    if (is_hidden(character.code)) {
      result += escape_of(character.code);
    } else {
      result.append(text.substr(0, character.size));
    }
    text.remove_prefix(character.size);
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
