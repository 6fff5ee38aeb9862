#pragma once

#include <format_text.h>

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torch_attention {

/// What an error says, without the backtrace that LibTorch adds to its own. A
/// file can make it as long as its own names are.
inline std::string error_message(const std::exception& error) {
  constexpr size_t kMaxLength = 6000;
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return shortened(
      torch_error != nullptr ? torch_error->what_without_backtrace()
                             : error.what(),
      kMaxLength);
}

} // namespace torch_attention
