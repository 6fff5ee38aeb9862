#pragma once

#include <tools/text/tokenizer_file.h>

#include <string>

namespace torch_attention::tools {

/// Returns the text that ONNX Runtime GenAI turns into Python's tokens: with
/// the space before it, and in Unicode's normal form C, if the tokenizer has
/// them. Throws c10::Error for a text that would have other tokens than in
/// Python.
std::string prepared_text(const TokenizerFile& file, const std::string& text);

} // namespace torch_attention::tools
