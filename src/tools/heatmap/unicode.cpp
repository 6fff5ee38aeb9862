#include <tools/heatmap/unicode.h>

#include <check.h>
#include <format_text.h>

#include <utf8proc.h>

#include <cstddef>

namespace torch_attention::tools {

namespace {

/// A character and its number of bytes; a negative one where there is no UTF-8.
struct DecodedCharacter {
  int32_t character;
  size_t bytes;
};

DecodedCharacter decode_first(std::string_view text) {
  utf8proc_int32_t character = -1;
  const auto count = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &character);
  return count > 0 ? DecodedCharacter{character, static_cast<size_t>(count)}
                   : DecodedCharacter{-1, 1};
}

/// Returns true if a character is not shown, changes others, or is not allowed
/// in XML.
bool is_unsafe(int32_t character) {
  constexpr int32_t kByteOrderMark = 0xFEFF;
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_CC: // control
    case UTF8PROC_CATEGORY_CF: // format: directions, no width
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      break;
  }
  const bool is_no_character = (character & 0xFFFE) == 0xFFFE ||
      (character >= 0xFDD0 && character <= 0xFDEF);
  return is_no_character || character == kByteOrderMark;
}

bool is_blank(int32_t character) {
  return utf8proc_category(character) == UTF8PROC_CATEGORY_ZS;
}

} // namespace

void check_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto next = decode_first(text.substr(at));
    TORCH_ATTENTION_CHECK(
        next.character >= 0,
        "expected UTF-8, but byte {} of the text is none",
        at);
    at += next.bytes;
  }
}

std::string printable(std::string_view token) {
  std::string text;
  bool has_visible = false;
  for (size_t at = 0; at < token.size();) {
    const auto next = decode_first(token.substr(at));
    if (next.character < 0) {
      text += format_text("\\x{:02x}", static_cast<unsigned char>(token[at]));
      has_visible = true;
    } else if (is_unsafe(next.character)) {
      text += format_text("\\u{:04x}", next.character);
      has_visible = true;
    } else {
      text += token.substr(at, next.bytes);
      has_visible = has_visible || !is_blank(next.character);
    }
    at += next.bytes;
  }
  return has_visible ? text : "\"" + text + "\"";
}

int64_t width_of(std::string_view text) {
  int64_t width = 0;
  for (size_t at = 0; at < text.size();) {
    const auto next = decode_first(text.substr(at));
    width += next.character < 0 ? 1 : utf8proc_charwidth(next.character);
    at += next.bytes;
  }
  return width;
}

std::string cut_to_width(const std::string& text, int64_t width) {
  constexpr int64_t kDots = 3;
  if (width_of(text) <= width) {
    return text;
  }
  std::string cut;
  int64_t used = kDots;
  for (size_t at = 0; at < text.size();) {
    const auto next = decode_first(std::string_view(text).substr(at));
    used += next.character < 0 ? 1 : utf8proc_charwidth(next.character);
    if (used > width) {
      break;
    }
    cut.append(text, at, next.bytes);
    at += next.bytes;
  }
  return cut + "...";
}

} // namespace torch_attention::tools
