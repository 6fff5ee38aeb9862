#include <tools/text/token_finder.h>

namespace torch_attention::tools {

namespace {

size_t place_of(char byte) {
  return static_cast<unsigned char>(byte);
}

} // namespace

void TokenFinder::add(const std::string& text, int64_t id) {
  if (!text.empty()) {
    ids_.emplace(text, id);
    sizes_.insert(text.size());
    begins_.at(place_of(text[0])) = true;
  }
}

std::optional<TokenFinder::Match> TokenFinder::find(
    std::string_view text) const {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!begins_.at(place_of(text[begin]))) {
      continue;
    }
    for (const auto size : sizes_) {
      const auto found = size <= text.size() - begin
          ? ids_.find(text.substr(begin, size))
          : ids_.end();
      if (found != ids_.end()) {
        return Match{begin, size, found->second};
      }
    }
  }
  return std::nullopt;
}

std::vector<TextPart> TokenFinder::split(std::string_view text) const {
  std::vector<TextPart> parts;
  while (const auto match = find(text)) {
    if (match->begin > 0) {
      parts.push_back({std::string(text.substr(0, match->begin))});
    }
    parts.push_back(
        {std::string(text.substr(match->begin, match->size)), match->id});
    text.remove_prefix(match->begin + match->size);
  }
  if (!text.empty()) {
    parts.push_back({std::string(text)});
  }
  return parts;
}

} // namespace torch_attention::tools
