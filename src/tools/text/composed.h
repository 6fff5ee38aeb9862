#pragma once

#include <string>

namespace torch_attention::tools {

/// Returns a text in Unicode's normal form C, as Python's `tokenizers` bring it
/// there. Throws c10::Error if it is not in UTF-8.
std::string composed(const std::string& text);

} // namespace torch_attention::tools
