#pragma once

#include <models/tokenizer_files.h>
#include <models/words.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_attention::models::detail {

/// The vocabulary and the options of a `WordPiece`.
class WordPieces {
 public:
  explicit WordPieces(const TokenizerFiles& files);

  /// Returns the tokens of a text with those around it: no more than
  /// `max_length`, which is 2 or more.
  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length) const;
  std::vector<std::u32string> words(const std::u32string& text) const {
    return split_words(text, options_);
  }

  /// Returns the text of a token, or null if there is none.
  const std::string* piece(int64_t id) const;

  /// One more than the largest token.
  int64_t size() const {
    return size_;
  }

 private:
  /// A token that is found in texts as it stands, such as "[MASK]".
  struct Special {
    std::u32string text;
    int64_t id;
  };

  std::vector<int64_t> encode(const std::string& text) const;
  void add_piece(const std::string& text, int64_t id);
  int64_t id_of(const std::string& text) const;

  void append_words(const std::u32string& text, std::vector<int64_t>& ids)
      const;
  void append_pieces(const std::u32string& word, std::vector<int64_t>& ids)
      const;
  const Special* special_at(const std::u32string& text, size_t begin) const;

  WordOptions options_;
  size_t longest_word_;
  bool cuts_left_;
  size_t longest_piece_ = 0;
  int64_t size_ = 0;
  // Not a vector: numbers of the file may be far apart.
  std::unordered_map<int64_t, std::string> pieces_;
  // Pieces that begin a word, and the others without their "##".
  std::unordered_map<std::u32string, int64_t> first_pieces_;
  std::unordered_map<std::u32string, int64_t> next_pieces_;
  std::vector<Special> specials_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t unknown_ = 0;
};

} // namespace torch_attention::models::detail
