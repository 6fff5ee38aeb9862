#include <tools/text/token_bytes.h>

#include <format_text.h>

#include <utf8proc.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace torch_attention::tools {

namespace {

/// Returns the byte that a letter stands for (Radford et al. 2019, the code of
/// GPT-2): printable letters of Latin-1 are themselves, and the 68 other bytes
/// are the letters from U+0100 on, in their order.
std::optional<char> byte_of(int32_t letter) {
  constexpr int32_t kFirst = 0x100;
  const bool is_printable = (letter > 0x20 && letter < 0x7F) ||
      (letter > 0xA0 && letter < kFirst && letter != 0xAD);
  if (is_printable) {
    return static_cast<char>(letter);
  }
  int32_t byte = letter - kFirst;
  if (byte > 0x20) {
    byte += 0x7F - 0x21; // behind the printable ones of ASCII
  }
  if (byte > 0xA0) {
    byte = 0xAD;
  }
  const bool is_letter = letter >= kFirst && letter < kFirst + 68;
  return is_letter ? std::make_optional(static_cast<char>(byte)) : std::nullopt;
}

/// Returns the token itself if it has other letters, as added tokens may.
std::string from_byte_letters(const std::string& token) {
  std::string bytes;
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(token.data());
  auto size = static_cast<utf8proc_ssize_t>(token.size());
  while (size > 0) {
    utf8proc_int32_t letter = 0;
    const auto length = utf8proc_iterate(next, size, &letter);
    const auto byte = length > 0 ? byte_of(letter) : std::nullopt;
    if (!byte) {
      return token;
    }
    bytes += *byte;
    next += length;
    size -= length;
  }
  return bytes;
}

/// Returns the byte of a token such as <0x0A>.
std::optional<char> from_byte_token(const std::string& token) {
  if (token.size() != 6 || token.rfind("<0x", 0) != 0 || token.back() != '>' ||
      token.find_first_not_of("0123456789abcdefABCDEF", 3) != 5) {
    return std::nullopt;
  }
  return static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
}

} // namespace

std::string bytes_of_token(
    const std::string& token,
    const TokenDecoder& decoder) {
  if (decoder.has_byte_letters) {
    return from_byte_letters(token);
  }
  const auto byte =
      decoder.has_byte_tokens ? from_byte_token(token) : std::nullopt;
  if (byte) {
    return {*byte};
  }
  auto text = token;
  const std::string space = "▁";
  while (decoder.has_replaced_spaces) {
    const auto found = text.find(space);
    if (found == std::string::npos) {
      break;
    }
    text.replace(found, space.size(), " ");
  }
  return text;
}

std::vector<std::string> tokens_of_bytes(bool as_letters) {
  std::vector<std::string> tokens;
  if (!as_letters) {
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(format_text("<0x{:02X}>", byte));
    }
    return tokens;
  }
  constexpr int32_t kAfterLetters = 0x100 + 68;
  for (int32_t letter = 0; letter < kAfterLetters; ++letter) {
    if (byte_of(letter)) {
      std::array<utf8proc_uint8_t, 4> bytes{};
      const auto size = utf8proc_encode_char(letter, bytes.data());
      tokens.emplace_back(bytes.begin(), bytes.begin() + size);
    }
  }
  return tokens;
}

} // namespace torch_attention::tools
