#include <weights/files/weight_file.h>

#include <check.h>
#include <format_text.h>

namespace torch_attention::weights::files {

void check_key_length(std::string_view key) {
  TORCH_ATTENTION_CHECK(
      key.size() <= kMaxKeyLength,
      "the name \"{}\" has {} bytes, but the longest that is read or "
      "written has {}",
      shortened(key, 200),
      key.size(),
      kMaxKeyLength);
}

std::string text_of(const ForeignValue& value) {
  return format_text(
      "\"{}\" {}{}",
      value.path,
      value.reason,
      value.holds_tensors
          ? ", which was not made: the tensors in it are not read. Save only "
            "the state dict in Python: torch.save(model.state_dict(), path)"
          : "");
}

} // namespace torch_attention::weights::files
