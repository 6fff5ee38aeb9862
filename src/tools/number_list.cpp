#include <tools/number_list.h>

#include <check.h>

#include <charconv>
#include <sstream>
#include <system_error>

namespace torch_attention::tools {

std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

int64_t number_of(std::string_view text, const char* what) {
  constexpr int64_t kMostNumber = 1 << 24;
  int64_t value = -1;
  const auto* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  TORCH_ATTENTION_CHECK(
      read.ec == std::errc() && read.ptr == end && value >= 0 &&
          value <= kMostNumber,
      "expected whole numbers in {}, such as 0,2,5, but got \"{}\"",
      what,
      text);
  return value;
}

std::vector<int64_t> token_ids_of(const std::string& text, const char* what) {
  std::vector<int64_t> ids;
  for (const auto& part : split_text(text, ',')) {
    ids.push_back(number_of(part, what));
  }
  TORCH_ATTENTION_CHECK(
      !ids.empty(), "expected at least one token in {}", what);
  return ids;
}

} // namespace torch_attention::tools
