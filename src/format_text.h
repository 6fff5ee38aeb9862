#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

namespace torch_attention {

/// What `fmt::vformat` gives, compiled once: in each source file that formats,
/// the headers of fmt would cost four seconds.
std::string format_arguments(fmt::string_view format, fmt::format_args args);

/// What `fmt::format` gives.
template <typename... Args>
std::string format_text(
    fmt::format_string<Args...> format,
    const Args&... args) {
#if FMT_VERSION >= 110000
  const auto text = format.get();
#else
  const fmt::string_view text = format;
#endif
  return format_arguments(text, fmt::make_format_args(args...));
}

} // namespace torch_attention
