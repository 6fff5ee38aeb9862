#include <weights/files/weight_file.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::files {

void check_key_length(std::string_view key) {
  TORCH_CHECK(
      key.size() <= kMaxKeyLength,
      format_text(
          "the name \"{}\" has {} bytes, but the longest that is read or "
          "written has {}",
          shortened(key, 200),
          key.size(),
          kMaxKeyLength));
}

} // namespace torch_attention::weights::files
