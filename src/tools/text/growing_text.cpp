#include <tools/text/growing_text.h>

#include <utf8.h>

#include <string_view>

namespace torch_attention::tools {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

} // namespace

std::string GrowingText::add(int64_t token) {
  rest_ += tokens_.bytes(token);
  std::string added;
  std::string_view bytes = rest_;
  while (!bytes.empty()) {
    const auto first = first_character(bytes);
    if (first.is_cut) {
      break;
    }
    added += first.is_valid ? bytes.substr(0, first.size) : kReplacement;
    bytes.remove_prefix(first.size);
  }
  rest_ = std::string(bytes);
  return added;
}

std::string GrowingText::finish() {
  const bool is_empty = rest_.empty();
  rest_.clear();
  return is_empty ? "" : kReplacement;
}

} // namespace torch_attention::tools
