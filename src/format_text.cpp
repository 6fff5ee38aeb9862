#include <format_text.h>

#include <escape.h>

namespace torch_attention {

namespace {

constexpr size_t kMaxListed = 20;
constexpr size_t kListedOfMore = 10;
// Longer than any sentence of ours with names of usual length.
constexpr size_t kMaxItem = 1000;

/// Returns "1,234,567".
std::string count_text(size_t count) {
  auto digits = std::to_string(count);
  for (auto place = digits.size(); place > 3;) {
    place -= 3;
    digits.insert(place, 1, ',');
  }
  return digits;
}

/// Returns whether the byte continues a UTF-8 character.
bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

} // namespace

std::string format_arguments(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

std::string shortened(std::string_view text, size_t limit) {
  if (text.size() <= limit) {
    return std::string(text);
  }
  auto head = 2 * limit / 3;
  auto tail = text.size() - limit / 3;
  while (head > 0 && continues_character(text[head])) {
    --head;
  }
  while (tail < text.size() && continues_character(text[tail])) {
    ++tail;
  }
  return format_text(
      "{} … ({} bytes more) … {}",
      text.substr(0, head),
      count_text(tail - head),
      text.substr(tail));
}

std::string list_text(
    const std::vector<std::string>& items,
    std::string_view separator,
    std::string_view quote) {
  const auto listed = items.size() > kMaxListed ? kListedOfMore : items.size();
  std::vector<std::string> texts;
  texts.reserve(listed + 1);
  for (size_t i = 0; i < listed; ++i) {
    texts.push_back(format_text(
        "{0}{1}{0}", quote, escaped(shortened(items[i], kMaxItem))));
  }
  if (listed < items.size()) {
    texts.push_back(
        format_text("… and {} more", count_text(items.size() - listed)));
  }
  return format_text("{}", fmt::join(texts, separator));
}

std::string quoted_list(const std::vector<std::string>& items) {
  return list_text(items, ", ", "\"");
}

} // namespace torch_attention
