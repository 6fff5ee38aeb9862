#include <weights/nearest.h>

#include <algorithm>
#include <numeric>

namespace torch_attention {

namespace {

/// Levenshtein's distance.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    auto diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

/// What comes before the last dot: ".weight" tells nothing.
std::string stem(const std::string& text) {
  return text.substr(0, text.rfind('.'));
}

std::string leaf(const std::string& text) {
  const auto dot = text.rfind('.');
  return dot == std::string::npos ? "" : text.substr(dot);
}

} // namespace

std::optional<std::string> nearest_text(
    const std::string& text,
    const std::vector<std::string>& candidates) {
  auto best = stem(text).size() / 3 + 1;
  std::optional<std::string> nearest;
  for (const auto& candidate : candidates) {
    const auto difference = candidate.size() > text.size()
        ? candidate.size() - text.size()
        : text.size() - candidate.size();
    if (leaf(candidate) != leaf(text) || difference >= best) {
      continue;
    }
    const auto found = distance(stem(text), stem(candidate));
    if (found < best) {
      best = found;
      nearest = candidate;
    }
  }
  return nearest;
}

} // namespace torch_attention
