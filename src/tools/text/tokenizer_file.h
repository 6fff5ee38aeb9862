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
  /// The UTF-8 of each token but special ones. The library's own decoder leaves
  /// out all that follows a zero, or bytes that are no character.
  std::unordered_map<int64_t, std::string> bytes;
  /// Texts of tokens that take in the spaces next to them.
  std::vector<std::string> refused_texts;
};

/// Reads a tokenizer.json. Throws c10::Error, which names the part, unless all
/// of its parts are of kinds whose tokens were compared with those of Python's
/// `tokenizers`: byte pair encoding as of GPT-2, Llama 3, Qwen2, RoBERTa and
/// Gemma.
TokenizerFile read_tokenizer_file(const std::string& path);

} // namespace torch_attention::tools
