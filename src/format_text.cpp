#include <format_text.h>

namespace torch_attention {

std::string format_arguments(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

} // namespace torch_attention
