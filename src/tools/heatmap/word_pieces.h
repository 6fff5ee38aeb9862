#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch_attention::tools {

/// The WordPiece tokenizer of BERT's folders: `vocab.txt`, and from
/// `tokenizer_config.json`, if it is there, `do_lower_case`, `strip_accents`
/// and `tokenize_chinese_chars`. Gives the tokens of `BertTokenizerFast`.
class WordPieces {
 public:
  /// Throws c10::Error if the folder has no vocabulary, or one without [UNK].
  explicit WordPieces(const std::string& folder);

  /// Returns true if the folder has a `vocab.txt`.
  static bool are_in(const std::string& folder);

  /// Returns the tokens of a UTF-8 text between [CLS] and [SEP]. Special tokens
  /// in the text, such as [MASK], are themselves.
  std::vector<int64_t> encode(const std::string& text) const;

  /// Returns the text of a token, such as "##ing"; "7" for a number that the
  /// vocabulary does not have.
  std::string token(int64_t id) const;

 private:
  int64_t id_of(const std::string& token) const;
  void append_plain(std::string_view text, std::vector<int64_t>& ids) const;
  void append_word(const std::vector<int32_t>& word, std::vector<int64_t>& ids)
      const;
  std::vector<int32_t> normalized(std::string_view text) const;

  std::string path_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  bool lowers_ = true;
  bool strips_accents_ = true;
  bool splits_chinese_ = true;
};

} // namespace torch_attention::tools
