#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_attention::tools {

/// The parts of a tokenizer.json that ONNX Runtime GenAI leaves to us.
struct TokenizerFile {
  /// The tokens that surround each text, such as one that begins it.
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  /// Whether texts are brought to Unicode's normal form C.
  bool has_nfc = false;
  /// Whether a space is put before texts ("Prepend"), which the library does
  /// not do.
  bool has_prefix_space = false;
  /// Whether the letter "▁" stands for a space within tokens.
  bool has_replaced_spaces = false;
  /// The UTF-8 of each token but special ones. The library's own decoder leaves
  /// out all that follows a zero, or bytes that are no character.
  std::unordered_map<int64_t, std::string> bytes;
  /// Texts of tokens that take in the spaces next to them, after which another
  /// space would be put, that are searched for after a text is normalized, or
  /// that merges do not make though the vocabulary has them.
  std::vector<std::string> refused_texts;
  /// Texts of added tokens that are searched for before a text is normalized.
  std::vector<std::string> raw_tokens;
};

/// Reads a tokenizer.json. Throws c10::Error, which names the part, unless all
/// of its parts are of kinds whose tokens were compared with those of Python's
/// `tokenizers`: byte pair encoding as of GPT-2, Llama 2 and 3, Qwen2, RoBERTa
/// and Gemma. The path may be that of a GGUF file. A tokenizer_config.json next
/// to a tokenizer.json must not ask for other tokens.
TokenizerFile read_tokenizer_file(const std::string& path);

} // namespace torch_attention::tools
