#pragma once

#include <tools/text/tokens.h>

#include <cstdint>
#include <string>

namespace torch_attention::tools {

/// A text that grows by tokens, which may begin and end within a character.
/// U+FFFD stands for bytes that are no character, as in `tokenizers`; its
/// ByteFallback writes it for valid characters next to them, too.
class GrowingText {
 public:
  explicit GrowingText(const TextTokens& tokens) : tokens_(tokens) {}

  /// Returns the text that a token adds: nothing while a character is
  /// incomplete.
  std::string add(int64_t token);

  /// Returns the rest, if the text ends with an incomplete character.
  std::string finish();

 private:
  const TextTokens& tokens_;
  /// The bytes of a character that is incomplete.
  std::string rest_;
};

} // namespace torch_attention::tools
