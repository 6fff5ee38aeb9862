#pragma once

#include <string>
#include <string_view>

namespace torch_attention {

/// Returns the text as one line that a terminal prints as it is. Text of a file
/// can hold anything: control characters (C0, DEL, C1), line separators, and
/// characters that no one sees or that turn the direction of writing become
/// escapes as in Python, "\n", "\x1b" and "\u202e"; so do bytes that are not
/// UTF-8. A text that was escaped stays as it is.
std::string escaped(std::string_view text);

/// Returns a text of several lines, each of them escaped. Those after the first
/// are indented, so that none looks like a message of its own.
std::string escaped_lines(std::string_view text);

} // namespace torch_attention
