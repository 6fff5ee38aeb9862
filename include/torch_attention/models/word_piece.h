#pragma once

#include <torch_attention/models/export.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::models {

namespace detail {
class WordPieces;
}

/// The tokenizer of BERT, DistilBERT, ELECTRA and MPNet: words, cut into the
/// longest pieces that the vocabulary has (Wu et al. 2016, "Google's Neural
/// Machine Translation System", section 4.1). Gives the tokens of
/// `BertTokenizerFast`, or of `AutoTokenizer` if the folder has a config.json.
///
/// Texts are UTF-8; bytes that are not count as U+FFFD, which BERT removes.
/// Copies share the vocabulary.
///
/// Example:
/// ```
/// const WordPiece tokenizer("all-MiniLM-L6-v2");
/// tokenizer.encode("Hello, world!"); // 101, 7592, 1010, 2088, 999, 102
/// ```
class TORCH_ATTENTION_MODELS_API WordPiece {
 public:
  /// Reads `tokenizer.json` or `vocab.txt` of a folder, the options and special
  /// tokens of `tokenizer_config.json`, and, if that has no
  /// "added_tokens_decoder", `special_tokens_map.json` and `added_tokens.json`.
  ///
  /// Throws c10::Error, which names the file and the field, if there is no such
  /// tokenizer, if `tokenizer.json` contradicts `tokenizer_config.json`, if
  /// transformers would open it as a class of another kind, and for added
  /// tokens that are found in other forms than their own
  /// ("normalized", "single_word").
  explicit WordPiece(const std::string& folder);

  /// Returns whether the constructor would read this folder's tokenizer: false
  /// for files that are missing, damaged or of another kind.
  static bool is_in(const std::string& folder);

  /// Returns the tokens of a text between those of its begin and end, such as
  /// [CLS] and [SEP]. Special tokens in the text, such as [MASK], are
  /// themselves. With `max_length` there are no more than so many: the text's
  /// end is cut off, or its begin if the folder's `truncation_side` is left.
  /// Throws c10::Error if that is less than 2.
  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length = std::nullopt) const;

  /// Returns the words of a text, before they are cut into pieces: in lower
  /// case and without accents, if the tokenizer is so.
  std::vector<std::string> words(const std::string& text) const;

  /// Returns whether the vocabulary has a token.
  bool has(int64_t id) const;

  /// Returns a token as text, "##" before what goes on. Throws c10::Error for
  /// one that the vocabulary does not have.
  const std::string& piece(int64_t id) const;

  /// One more than the largest token, those included that were added to the
  /// vocabulary.
  int64_t vocab_size() const;

 private:
  std::shared_ptr<const detail::WordPieces> pieces_;
};

} // namespace torch_attention::models
