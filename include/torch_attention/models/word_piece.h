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
/// `BertTokenizerFast`.
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
  /// Reads `tokenizer.json`, or `vocab.txt` with `tokenizer_config.json`, of a
  /// folder. Throws c10::Error if there is neither, or it is another kind of
  /// tokenizer.
  explicit WordPiece(const std::string& folder);

  /// Returns whether a folder has such a tokenizer.
  static bool is_in(const std::string& folder);

  /// Returns the tokens of a text between those of its begin and end, such as
  /// [CLS] and [SEP]. Special tokens in the text, such as [MASK], are
  /// themselves. With `max_length` there are no more than so many: the text's
  /// end is cut off. Throws c10::Error if that is less than 2.
  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length = std::nullopt) const;

  /// Returns the words of a text, before they are cut into pieces: in lower
  /// case and without accents, if the tokenizer is so.
  std::vector<std::string> words(const std::string& text) const;

  /// Returns a token as text, "##" before what goes on. Throws c10::Error for
  /// one that the vocabulary does not have.
  const std::string& piece(int64_t id) const;

  /// Tokens are from 0 to vocab_size() - 1.
  int64_t vocab_size() const;

 private:
  std::shared_ptr<const detail::WordPieces> pieces_;
};

} // namespace torch_attention::models
