#pragma once

#include <escape.h>
#include <format_text.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace torch_attention {

/// An error whose message may be printed unchanged: text from files is escaped,
/// and its line breaks are intended.
class PrintableError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// Throws `text`, in which text from files must be escaped.
[[noreturn]] inline void throw_printable(std::string text) {
  throw PrintableError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text));
}

/// Returns an error's message without the backtrace that LibTorch adds.
inline std::string raw_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace()
                                : error.what();
}

/// Messages may contain long names from files, so they are shortened to this.
inline constexpr size_t kMaxMessage = 6000;

/// Returns an error's message without the backtrace that LibTorch adds, escaped
/// for a terminal and shortened. It is a single line, except for a
/// `PrintableError`.
inline std::string error_message(const std::exception& error) {
  const auto text = shortened(raw_message(error), kMaxMessage);
  return dynamic_cast<const PrintableError*>(&error) != nullptr
      ? text
      : shortened(escaped(text), kMaxMessage);
}

/// Returns an error's message like `error_message`, but preserves line breaks,
/// as LibTorch's own messages have several lines.
inline std::string error_lines(const std::exception& error) {
  const auto text = shortened(raw_message(error), kMaxMessage);
  return dynamic_cast<const PrintableError*>(&error) != nullptr
      ? text
      : shortened(escaped_lines(text), kMaxMessage);
}

} // namespace torch_attention
