#include <tools/text/text_parts.h>

#include <check.h>
#include <escape.h>
#include <utf8.h>

#include <c10/util/Exception.h>

#include <string_view>

namespace torch_attention::tools {

namespace {

void check_utf8(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const auto first = first_character(rest);
    TORCH_ATTENTION_CHECK(
        first.is_valid,
        "expected a text in UTF-8, but got \"{}\"",
        escaped(text));
    rest.remove_prefix(first.size);
  }
}

[[noreturn]] void refuse_text_with(const std::string& token) {
  C10_THROW_ERROR(
      Error,
      format_text(
          "tokenizer.json: a text with \"{}\" would have other tokens here "
          "than in Python",
          escaped(token)));
}

void check_has_same_tokens(const TokenizerFile& file, const std::string& text) {
  for (const auto& refused : file.refused_texts) {
    if (text.find(refused) != std::string::npos) {
      refuse_text_with(refused);
    }
  }
}

/// Throws c10::Error for what ONNX Runtime GenAI reads otherwise than Python.
void check_for_genai(const TokenizerFile& file, const std::string& text) {
  // It reads a text up to the first zero.
  TORCH_ATTENTION_CHECK(
      text.find('\0') == std::string::npos,
      "expected a text without zero bytes, but got one at {} of \"{}\"",
      text.find('\0'),
      escaped(text.substr(0, 60)));
  // It finds tokens that the normalizer has made, too.
  for (const auto& part : file.added.written.split(text)) {
    if (part.token) {
      refuse_text_with(part.text);
    }
  }
}

} // namespace

std::vector<TextPart> text_parts(
    const TokenizerFile& file,
    const std::string& text) {
  check_utf8(text);
  check_has_same_tokens(file, text);
  std::vector<TextPart> parts;
  for (const auto& raw : file.added.raw.split(text)) {
    if (raw.token) {
      parts.push_back(raw);
      continue;
    }
    const auto normalized = file.normalizer.apply(raw.text);
    check_has_same_tokens(file, normalized);
    for (const auto& part : file.added.normalized.split(normalized)) {
      if (!part.token && file.merges == nullptr) {
        check_for_genai(file, part.text);
      }
      parts.push_back(part);
    }
  }
  return parts;
}

} // namespace torch_attention::tools
