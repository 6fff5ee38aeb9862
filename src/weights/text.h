#pragma once

#include <affixes.h>
#include <format_text.h>

#include <torch/types.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::weights {

/// Returns whether a path of names is `end`, or ends with it after a dot.
inline bool ends_with_names(std::string_view path, std::string_view end) {
  return ends_with(path, end) &&
      (path.size() == end.size() || path[path.size() - end.size() - 1] == '.');
}

/// Returns the text with small letters in place of ASCII's capitals.
inline std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

inline bool contains(
    const std::vector<std::string>& keys,
    const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// Returns "torch.Size([8, 24])", as Python prints it.
inline std::string shape_text(torch::IntArrayRef shape) {
  return format_text("torch.Size([{}])", fmt::join(shape, ", "));
}

/// Returns "LoadOptions().prefix("a") or prefix("b")".
inline std::string prefix_choice(const std::vector<std::string>& prefixes) {
  std::vector<std::string> calls;
  calls.reserve(prefixes.size());
  for (const auto& prefix : prefixes) {
    calls.push_back(format_text("prefix(\"{}\")", prefix));
  }
  return "LoadOptions()." + list_text(calls, " or ");
}

/// Returns the folder of a path, with a slash at its end; "" for the current
/// folder.
inline std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

} // namespace torch_attention::weights
