#pragma once

#include <cstddef>
#include <string_view>

namespace torch_attention {

/// The first character of a text in UTF-8, or the bytes that are none.
struct Utf8Character {
  /// The character, if there is one.
  char32_t code = 0;
  /// Its bytes; or else those that may begin one, at least 1.
  size_t size = 1;
  bool is_valid = false;
  /// Whether the text ends before the character does.
  bool is_cut = false;
};

/// Returns the number of bytes of a character by its first one, or 0.
constexpr size_t utf8_size(unsigned char first) {
  return first < 0x80 ? 1
      : first < 0xC2  ? 0
      : first < 0xE0  ? 2
      : first < 0xF0  ? 3
      : first < 0xF5  ? 4
                      : 0;
}

/// Returns whether a byte may come second. Others after a first one make
/// surrogates, characters beyond the last, or longer forms of shorter ones.
constexpr bool may_be_second(unsigned char first, unsigned char second) {
  const int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= least && second <= most;
}

/// Returns the begin of a text that is not empty, by table 3-7 of the Unicode
/// standard.
inline Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const auto first = byte(0);
  const auto size = utf8_size(first);
  Utf8Character result;
  // Without the bits that encode the size.
  result.code = first & (0x7FU >> (size > 1 ? size : 0));
  for (; result.size < size; ++result.size) {
    const auto i = result.size;
    if (i == text.size()) {
      result.is_cut = true;
      return result;
    }
    const bool fits =
        i == 1 ? may_be_second(first, byte(i)) : (byte(i) & 0xC0U) == 0x80;
    if (!fits) {
      return result;
    }
    result.code = (result.code << 6U) | (byte(i) & 0x3FU);
  }
  result.is_valid = size > 0;
  return result;
}

} // namespace torch_attention
