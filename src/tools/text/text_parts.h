#pragma once

#include <tools/text/token_finder.h>
#include <tools/text/tokenizer_file.h>

#include <string>
#include <vector>

namespace torch_attention::tools {

/// Returns the added tokens in a text as Python's `tokenizers` find them, and
/// between them what the normalizer makes of the rest, which is to be cut into
/// tokens by the merges of `file` or by ONNX Runtime GenAI. Throws c10::Error
/// for a text that is not in UTF-8, or would have other tokens than in Python.
std::vector<TextPart> text_parts(
    const TokenizerFile& file,
    const std::string& text);

} // namespace torch_attention::tools
