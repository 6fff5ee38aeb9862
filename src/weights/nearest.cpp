#include <weights/nearest.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace torch_attention::weights {

namespace {

// This many steps take some tenths of a second.
constexpr size_t kMaxSteps = 100'000'000;

/// Returns the Levenshtein distance.
size_t distance(std::string_view a, std::string_view b) {
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

/// Returns the part before the last dot; ends such as ".weight" are no clue.
std::string_view stem(std::string_view text) {
  return text.substr(0, text.rfind('.'));
}

std::string_view leaf(std::string_view text) {
  const auto dot = text.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : text.substr(dot);
}

} // namespace

NearestText::NearestText(const std::vector<std::string>& candidates)
    : candidates_(candidates), steps_left_(kMaxSteps) {}

std::optional<std::string> NearestText::find(const std::string& text) {
  auto best = stem(text).size() / 3 + 1;
  std::optional<std::string> nearest;
  for (const auto& candidate : candidates_) {
    const auto difference = candidate.size() > text.size()
        ? candidate.size() - text.size()
        : text.size() - candidate.size();
    const bool is_possible = difference < best && leaf(candidate) == leaf(text);
    const auto steps = 1 + (is_possible ? text.size() * candidate.size() : 0);
    if (steps > steps_left_) {
      steps_left_ = 0;
      return nearest;
    }
    steps_left_ -= steps;
    if (!is_possible) {
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

} // namespace torch_attention::weights
