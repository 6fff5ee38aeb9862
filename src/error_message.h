#pragma once

#include <format_text.h>

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torch_attention {

/// Returns an error's message without the backtrace that LibTorch adds, and
/// shortened: a file with long names can make it as long as these.
inline std::string error_message(const std::exception& error) {
  constexpr size_t kMaxLength = 6000;
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return shortened(
      torch_error != nullptr ? torch_error->what_without_backtrace()
                             : error.what(),
      kMaxLength);
}

} // namespace torch_attention
