#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torch_attention {

/// What an error says, without the backtrace that LibTorch adds to its own.
inline std::string error_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace()
                                : error.what();
}

} // namespace torch_attention
