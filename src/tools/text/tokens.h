#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Texts as tokens of a model, and back.
class TextTokens {
 public:
  virtual ~TextTokens() = default;

  /// Returns the tokens of a text with those that begin and end it. With
  /// `max_length` there are no more than so many: the text's end is cut off, or
  /// its begin if the folder's `truncation_side` is left.
  virtual std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length = std::nullopt) const = 0;

  /// Returns the UTF-8 that a token stands for, which may begin and end within
  /// a character: nothing for one that is not text.
  virtual std::string bytes(int64_t token) const = 0;

  /// Returns how one token is shown.
  virtual std::string label(int64_t token) const;
};

/// Returns whether the tokens of a folder's model are bytes: its config.json
/// has "tokens": "bytes", as examples/gpt writes it.
bool has_bytes_as_tokens(const std::string& folder);

/// Returns the tokens of a folder's model, or of a GGUF file: bytes, WordPiece,
/// or those of a `tokenizer.json` of another kind.
///
/// Throws c10::Error if there is no such file, if the library that reads it is
/// not found, or if its tokens would not be Python's.
std::unique_ptr<TextTokens> open_tokens(const std::string& folder);

/// Returns the tokens of a folder with a tokenizer of BERT, or null for others.
std::unique_ptr<TextTokens> open_word_pieces(const std::string& folder);

/// Prints the tokens of each line, as 1,2,3.
void print_tokens(
    const std::string& folder,
    std::istream& in,
    std::ostream& out);

/// Returns the tokens of a tokenizer.json of byte pairs, or of a GGUF file.
std::unique_ptr<TextTokens> open_byte_pairs(const std::string& path);

} // namespace torch_attention::tools
