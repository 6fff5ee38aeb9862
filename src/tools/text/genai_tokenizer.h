#pragma once

#include <tools/text/genai_library.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// A tokenizer.json as ONNX Runtime GenAI reads it: splits texts into words,
/// and merges their bytes.
class GenaiTokenizer {
 public:
  /// The path may be that of a GGUF file. Throws c10::Error if the library is
  /// not found, or does not read the file.
  explicit GenaiTokenizer(const std::string& path);
  ~GenaiTokenizer();
  GenaiTokenizer(const GenaiTokenizer&) = delete;
  GenaiTokenizer& operator=(const GenaiTokenizer&) = delete;
  GenaiTokenizer(GenaiTokenizer&&) = delete;
  GenaiTokenizer& operator=(GenaiTokenizer&&) = delete;

  /// Appends the tokens of a text without zero bytes, and without those that
  /// begin and end it.
  void append(const std::string& text, std::vector<int64_t>& ids) const;

 private:
  const GenaiLibrary& api_;
  OgaTokenizer* tokenizer_ = nullptr;
};

} // namespace torch_attention::tools
