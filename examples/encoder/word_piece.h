#pragma once

#include "words.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace encoder {

/// The tokenizer of BERT, DistilBERT and MPNet: words, cut into the longest
/// pieces that the vocabulary has (Wu et al. 2016, "Google's Neural Machine
/// Translation System", section 4.1).
///
/// It gives the tokens of `BertTokenizerFast`. Bytes that are no UTF-8 count as
/// U+FFFD, which BERT removes.
///
/// Example:
/// ```
/// const WordPiece tokenizer("all-MiniLM-L6-v2");
/// tokenizer.encode("Hello, world!"); // 101, 7592, 1010, 2088, 999, 102
/// ```
class WordPiece {
 public:
  /// Reads `tokenizer.json`, or `vocab.txt` with `tokenizer_config.json`.
  /// Throws c10::Error if there is neither, or it is another kind of tokenizer.
  explicit WordPiece(const std::string& folder);

  /// Returns the tokens of a text between those of its begin and end, and at
  /// most `max_length` with these two: the text's end is cut off.
  std::vector<int64_t> encode(const std::string& text, int64_t max_length)
      const;

  /// Returns a token as text, "##" before what goes on.
  const std::string& piece(int64_t id) const;

  int64_t vocab_size() const;

 private:
  /// A token that is found in texts as it stands, such as "[MASK]".
  struct Special {
    std::u32string text;
    int64_t id;
  };

  void read_tokenizer(const nlohmann::json& tokenizer, const std::string& path);
  void read_vocabulary(const std::string& path);
  void add_piece(const std::string& text, int64_t id);
  void add_special(const std::string& text);
  int64_t id_of(const std::string& text) const;

  void add_words(const std::u32string& text, std::vector<int64_t>& ids) const;
  void add_pieces(const std::u32string& word, std::vector<int64_t>& ids) const;
  const Special* special_at(const std::u32string& text, size_t begin) const;

  std::string folder_;
  WordOptions options_;
  size_t longest_word_ = 100;
  size_t longest_piece_ = 0;
  std::vector<std::string> pieces_;
  // Pieces that begin a word, and the others without their "##".
  std::unordered_map<std::u32string, int64_t> first_pieces_;
  std::unordered_map<std::u32string, int64_t> next_pieces_;
  std::vector<Special> specials_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t unknown_ = 0;
};

} // namespace encoder
