#pragma once

#include <format_text.h>

#include <stdexcept>
#include <utility>

namespace torch_attention::weights::quantized {

/// Why a group of tensors is not read: "is quantized by "hqq", which is not
/// read". It does not leave `join_quantized`.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws `Refused` unless the condition holds. The message is formatted as by
/// `format_text`.
template <typename... Args>
void refuse_unless(bool condition, const char* format, const Args&... args) {
  if (!condition) {
    throw Refused(format_values(format, formattable(args)...));
  }
}

} // namespace torch_attention::weights::quantized
