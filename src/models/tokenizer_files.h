#pragma once

#include <models/words.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::models::detail {

/// Begins pieces that continue a word.
constexpr const char* kContinuing = "##";

/// The content of a folder with a tokenizer of BERT.
struct TokenizerFiles {
  /// Throws c10::Error, which names the file and the field, if there is no such
  /// tokenizer, or if the files do not agree.
  explicit TokenizerFiles(const std::string& folder);

  WordOptions words;
  /// Characters of the longest word that is cut into pieces.
  size_t longest_word = 100;
  /// The pieces and their numbers; of equal pieces the last one counts.
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  /// Tokens that are found in texts as they stand, such as "[MASK]", with their
  /// numbers; those that the vocabulary lacks have numbers after it.
  std::vector<std::pair<std::string, int64_t>> specials;
  std::string begin;
  std::string end;
  std::string unknown;
  /// Whether texts that are too long lose their begin and not their end.
  bool cuts_left = false;
};

} // namespace torch_attention::models::detail
