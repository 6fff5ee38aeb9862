#pragma once

#include <tools/text/added_tokens.h>
#include <tools/text/merges.h>
#include <tools/text/post_processor.h>
#include <tools/text/text_normalizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_attention::tools {

/// The parts of a tokenizer.json of byte pairs.
struct TokenizerFile {
  TokensAround around;
  TextNormalizer normalizer;
  AddedTokens added;
  /// The merges of a text whose spaces are letters: it is one word, however
  /// long. Null if texts are split into words first, which ONNX Runtime GenAI
  /// does; it would end such a word after 101 characters.
  std::shared_ptr<const Merges> merges;
  /// The UTF-8 of each token but special ones. The library's own decoder leaves
  /// out all that follows a zero, or bytes that are no character.
  std::unordered_map<int64_t, std::string> bytes;
  /// Texts whose tokens would be others than Python's: those of added tokens
  /// that depend on what is next to them or that only a class of transformers
  /// has, and of tokens that no merges make.
  std::vector<std::string> refused_texts;
  /// Whether texts that are too long lose their begin and not their end.
  bool cuts_left = false;
};

/// Reads a tokenizer.json. Throws c10::Error, which names the part, unless all
/// of its parts are of kinds whose tokens were compared with those of Python's
/// `tokenizers`: byte pair encoding as of GPT-2, Llama 2 and 3, Qwen2, RoBERTa
/// and Gemma. The path may be that of a GGUF file. A tokenizer_config.json next
/// to a tokenizer.json must not ask for other tokens.
TokenizerFile read_tokenizer_file(const std::string& path);

/// Returns whether a tokenizer.json is one of WordPiece, which it is not for.
bool is_word_piece_file(const std::string& path);

} // namespace torch_attention::tools
