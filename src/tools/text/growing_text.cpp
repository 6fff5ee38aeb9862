#include <tools/text/growing_text.h>

#include <cstddef>
#include <string_view>

namespace torch_attention::tools {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

/// The first bytes of a text: a character, or as many as may begin one.
struct Begin {
  size_t size = 1;
  bool is_character = false;
  /// Whether the text ends before the character does.
  bool is_cut = false;
};

/// Returns the begin of a text that is not empty, by table 3-7 of the Unicode
/// standard.
Begin begin_of(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const auto first = byte(0);
  const size_t size = first < 0x80 ? 1
      : first < 0xC2               ? 0
      : first < 0xE0               ? 2
      : first < 0xF0               ? 3
      : first < 0xF5               ? 4
                                   : 0;
  if (size == 0) {
    return {};
  }
  Begin begin;
  for (; begin.size < size; ++begin.size) {
    if (begin.size == text.size()) {
      begin.is_cut = true;
      return begin;
    }
    // The second byte is not free after some: longer forms of characters,
    // surrogates, and numbers beyond U+10FFFF.
    const bool is_second = begin.size == 1;
    const int least = is_second && first == 0xE0 ? 0xA0
        : is_second && first == 0xF0             ? 0x90
                                                 : 0x80;
    const int most = is_second && first == 0xED ? 0x9F
        : is_second && first == 0xF4            ? 0x8F
                                                : 0xBF;
    if (byte(begin.size) < least || byte(begin.size) > most) {
      return begin;
    }
  }
  begin.is_character = true;
  return begin;
}

} // namespace

std::string GrowingText::add(int64_t token) {
  rest_ += tokens_.bytes(token);
  std::string added;
  std::string_view bytes = rest_;
  while (!bytes.empty()) {
    const auto begin = begin_of(bytes);
    if (begin.is_cut) {
      break;
    }
    added += begin.is_character ? bytes.substr(0, begin.size) : kReplacement;
    bytes.remove_prefix(begin.size);
  }
  rest_ = std::string(bytes);
  return added;
}

std::string GrowingText::finish() {
  const bool is_empty = rest_.empty();
  rest_.clear();
  return is_empty ? "" : kReplacement;
}

} // namespace torch_attention::tools
