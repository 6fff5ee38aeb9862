#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::tools {

/// Splits at every `separator`.
std::vector<std::string> split_text(const std::string& text, char separator);

/// Reads a whole number of a list from 0 on. Throws c10::Error for another text
/// or a larger number than layers, heads and tokens have; `what` names the
/// list.
int64_t number_of(std::string_view text, const char* what);

/// Reads the tokens of "101,7,102", of which there is at least one.
std::vector<int64_t> token_ids_of(const std::string& text, const char* what);

} // namespace torch_attention::tools
