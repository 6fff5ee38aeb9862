#include <tools/text/prepared_text.h>

#include <check.h>
#include <escape.h>
#include <tools/text/composed.h>
#include <tools/text/token_bytes.h>

#include <c10/util/Exception.h>

namespace torch_attention::tools {

namespace {

/// Returns the text with spaces for the letter "▁" if that stands for them.
std::string with_spaces(const TokenizerFile& file, const std::string& text) {
  TokenDecoder decoder;
  decoder.has_replaced_spaces = file.has_replaced_spaces;
  return bytes_of_token(text, decoder);
}

void check_has_same_tokens(bool has_same, const std::string& token) {
  TORCH_ATTENTION_CHECK(
      has_same,
      "tokenizer.json: a text with \"{}\" would have other tokens here than in "
      "Python",
      escaped(token));
}

} // namespace

std::string prepared_text(const TokenizerFile& file, const std::string& text) {
  // The library reads a text up to the first zero.
  TORCH_ATTENTION_CHECK(
      text.find('\0') == std::string::npos,
      "expected a text without zero bytes, but got one at {} of \"{}\"",
      text.find('\0'),
      escaped(text.substr(0, 60)));
  auto whole = file.has_prefix_space && !text.empty() ? " " + text : text;
  if (file.has_nfc) {
    whole = composed(whole);
    for (const auto& token : file.raw_tokens) {
      check_has_same_tokens(
          whole == text || is_kept_when_composed(token, text), token);
    }
  }
  const auto shown = with_spaces(file, whole);
  for (const auto& refused : file.refused_texts) {
    check_has_same_tokens(
        text.find(refused) == std::string::npos &&
            shown.find(with_spaces(file, refused)) == std::string::npos,
        refused);
  }
  return whole;
}

} // namespace torch_attention::tools
