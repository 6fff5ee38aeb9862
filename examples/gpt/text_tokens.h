#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

/// Texts as tokens of a model, and back.
class TextTokens {
 public:
  virtual ~TextTokens() = default;
  virtual std::vector<int64_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int64_t>& tokens) const = 0;
};

/// Returns whether the tokens of a folder's model are bytes, as `gpt train` has
/// them.
bool has_bytes_as_tokens(const std::string& folder);

/// Returns the tokens of a folder's model: bytes for one that `gpt train` made,
/// for others those of its `tokenizer.json`.
///
/// Throws c10::Error if there is no such file, the library that reads it was
/// not found when the program was built, or it cannot read this one.
std::unique_ptr<TextTokens> open_tokens(const std::string& folder);

/// Returns those of a tokenizer.json, by the library that genai_tokens.cpp
/// names.
std::unique_ptr<TextTokens> open_genai_tokens(const std::string& path);

/// A text that grows by tokens.
class GrowingText {
 public:
  explicit GrowingText(const TextTokens& tokens) : tokens_(tokens) {}

  /// Returns the text that a token adds: nothing while a character is
  /// incomplete.
  std::string add(int64_t token);

  /// Returns the rest, if the text ends with an incomplete character.
  std::string finish();

 private:
  std::string take(const std::string& text);

  const TextTokens& tokens_;
  std::vector<int64_t> all_;
  size_t shown_ = 0;
};

} // namespace gpt
