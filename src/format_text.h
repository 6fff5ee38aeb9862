#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch_attention {

/// Calls `fmt::vformat`, which is compiled only once: fmt's headers would cost
/// four seconds in each source file that formats.
std::string format_arguments(fmt::string_view format, fmt::format_args args);

/// Returns `value` if fmt can format it; otherwise the text that `<<` prints,
/// for LibTorch's types.
template <typename T>
decltype(auto) formattable(const T& value) {
  if constexpr (fmt::is_formattable<T>::value) {
    return (value);
  } else {
    std::ostringstream stream;
    stream << value;
    return stream.str();
  }
}

template <typename... Values>
std::string format_values(fmt::string_view format, const Values&... values) {
  return format_arguments(format, fmt::make_format_args(values...));
}

/// Formats like `fmt::format`, also types that only have `<<`.
template <typename... Args>
std::string format_text(
    fmt::format_string<std::decay_t<
        decltype(formattable(std::declval<const Args&>()))>...> format,
    const Args&... args) {
#if FMT_VERSION >= 110000
  const auto text = format.get();
#else
  const fmt::string_view text = format;
#endif
  return format_values(text, formattable(args)...);
}

/// Returns `text`, or its beginning and end if it is longer than `limit` bytes.
std::string shortened(std::string_view text, size_t limit);

/// Returns `items`, each escaped and between `quote`, joined by `separator`. If
/// there are more than 20, returns the first ten and "… and 999,990 more".
std::string list_text(
    const std::vector<std::string>& items,
    std::string_view separator,
    std::string_view quote = "");

/// Returns the items in quotes, joined by commas: "a", "b".
std::string quoted_list(const std::vector<std::string>& items);

} // namespace torch_attention
