#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torch_attention::tools {

/// Throws c10::Error that says at which byte a text is no UTF-8.
void check_utf8(std::string_view text);

/// Returns a token as it can be shown in any file: bytes that are no UTF-8 as
/// `\xff`, and characters that are invisible, that are not allowed in XML, or
/// that change the direction of what follows as `\u202e`. A text without
/// anything visible gets quotes.
std::string printable(std::string_view token);

/// Returns the cells of a terminal that a text takes: two for characters of
/// Chinese, none for accents.
int64_t width_of(std::string_view text);

/// Returns the beginning of a text, with "..." where it was cut, so that it
/// takes at most `width` cells.
std::string cut_to_width(const std::string& text, int64_t width);

} // namespace torch_attention::tools
