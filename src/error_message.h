#pragma once

#include <escape.h>
#include <format_text.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace torch_attention {

/// An error whose message may be printed as it is: text of files is escaped in
/// it, and its line breaks are ours.
class PrintableError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// Throws `text`, in which text of files is escaped.
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

/// A file with long names can make a message as long as these.
inline constexpr size_t kMaxMessage = 6000;

/// Returns an error's message without the backtrace that LibTorch adds, fit for
/// a terminal, and shortened. All but that of a `PrintableError` is one line.
inline std::string error_message(const std::exception& error) {
  const auto text = shortened(raw_message(error), kMaxMessage);
  return dynamic_cast<const PrintableError*>(&error) != nullptr
      ? text
      : shortened(escaped(text), kMaxMessage);
}

/// Returns the same for an error that may be LibTorch's own, whose messages
/// have several lines.
inline std::string error_lines(const std::exception& error) {
  const auto text = shortened(raw_message(error), kMaxMessage);
  return dynamic_cast<const PrintableError*>(&error) != nullptr
      ? text
      : shortened(escaped_lines(text), kMaxMessage);
}

} // namespace torch_attention
