#pragma once

#include <string_view>

namespace torch_attention {

/// Returns whether a text begins with another, as of C++20.
inline bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// Returns whether a text ends with another, as of C++20.
inline bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
      text.substr(text.size() - end.size()) == end;
}

} // namespace torch_attention
