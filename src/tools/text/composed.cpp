#include <tools/text/composed.h>

#include <check.h>
#include <escape.h>
#include <utf8.h>

#include <c10/util/Exception.h>

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace torch_attention::tools {

namespace {

/// Characters of a text that are next to each other in Unicode.
struct CharacterRange {
  char32_t first;
  char32_t last;
};

/// Characters that change places or compose with others since a later version
/// of Unicode than the 9th, which `tokenizers` 0.23 knows: combining marks, and
/// one of each pair of characters that compose.
constexpr std::array<CharacterRange, 62> kLaterCharacters{{
    {0x05C8, 0x05C9},   {0x07FD, 0x07FD},   {0x0897, 0x089F},
    {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},
    {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x10D24, 0x10D27},
    {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF},
    {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x113B8, 0x113B8}, {0x113BB, 0x113BB}, {0x113C2, 0x113C2},
    {0x113C9, 0x113C9}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x1611E, 0x16120}, {0x16129, 0x16129}, {0x1612F, 0x1612F},
    {0x16D67, 0x16D67}, {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128},
    {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F},
    {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6},
    {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
}};

bool is_later(char32_t character) {
  const auto* const range = std::lower_bound(
      kLaterCharacters.begin(),
      kLaterCharacters.end(),
      character,
      [](const CharacterRange& one, char32_t c) { return one.last < c; });
  return range != kLaterCharacters.end() && range->first <= character;
}

std::string composed_by_library(std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const auto size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &bytes,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(
      bytes, std::free);
  TORCH_ATTENTION_CHECK(
      size >= 0,
      "expected a text in UTF-8, but got \"{}\"",
      escaped(std::string(text)));
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

} // namespace

std::string composed(const std::string& text) {
  std::string result;
  std::string_view rest = text;
  // `tokenizers` leaves each later character where it is, as if it were a
  // letter.
  for (size_t end = 0; end < rest.size();) {
    const auto next = first_character(rest.substr(end));
    if (next.is_valid && is_later(next.code)) {
      result += composed_by_library(rest.substr(0, end));
      result += rest.substr(end, next.size);
      rest.remove_prefix(end + next.size);
      end = 0;
    } else {
      end += next.size;
    }
  }
  return result + composed_by_library(rest);
}

} // namespace torch_attention::tools
