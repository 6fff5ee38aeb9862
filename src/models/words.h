#pragma once

#include <string>
#include <vector>

/// Texts as words, as BERT takes them (Devlin et al. 2019): `BasicTokenizer` of
/// Python, or `BertNormalizer` and `BertPreTokenizer` of Hugging Face's
/// `tokenizers`, whose results these equal for every character.
namespace torch_attention::models {

struct WordOptions {
  bool lowercase = true;
  bool strip_accents = true;
  /// Makes each Chinese character a word.
  bool ideographs_apart = true;
};

/// Splits at white space and punctuation, each mark of which is a word; removes
/// control characters.
///
/// Example:
/// ```
/// split_words(U"Élan vital!", {}); // "elan", "vital", "!"
/// ```
std::vector<std::u32string> split_words(
    const std::u32string& text,
    const WordOptions& options);

/// Returns the characters of UTF-8, with U+FFFD for bytes that are none.
std::u32string decode_utf8(const std::string& bytes);

std::string encode_utf8(const std::u32string& text);

} // namespace torch_attention::models
