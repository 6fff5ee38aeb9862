#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The parts of a tokenizer.json that ONNX Runtime GenAI leaves to us.
struct TokenizerFile {
  /// The tokens that surround each text, such as one that begins it.
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  /// Whether texts are brought to Unicode's normal form C.
  bool has_nfc = false;
  /// Texts of tokens that take in the spaces next to them.
  std::vector<std::string> refused_texts;
};

/// Reads a tokenizer.json. Throws c10::Error, which names the part, unless all
/// of its parts are of kinds whose tokens were compared with those of Python's
/// `tokenizers`: byte pair encoding as of GPT-2, Llama 3, Qwen2, RoBERTa and
/// Gemma.
TokenizerFile read_tokenizer_file(const std::string& path);

} // namespace torch_attention::tools
