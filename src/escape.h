#pragma once

#include <string>
#include <string_view>

namespace torch_attention {

/// Returns the text as a single line that is safe to print to a terminal. Text
/// from a file can contain anything: control characters (C0, DEL, C1), line
/// separators, invisible characters, characters that change the writing
/// direction, and bytes that are not UTF-8. They become escapes as in Python,
/// "\n", "\x1b" and "\u202e". Escaping a text twice changes nothing more.
std::string escaped(std::string_view text);

/// Returns a text of several lines, each of them escaped. Lines after the first
/// are indented, so that none looks like a message of its own.
std::string escaped_lines(std::string_view text);

} // namespace torch_attention
