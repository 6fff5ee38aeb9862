#pragma once

#include <string>

namespace torch_attention::tools {

/// Returns a text in Unicode's normal form C. Throws c10::Error if it is not in
/// UTF-8.
std::string composed(const std::string& text);

/// Returns whether a token is found at the same places before and after a text
/// is composed: its ends may compose with the characters next to it, and
/// characters of the text may compose to it. The token is not empty.
bool is_kept_when_composed(const std::string& token, const std::string& text);

} // namespace torch_attention::tools
