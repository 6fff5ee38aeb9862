#include <weights/nearest.h>

#include <edit_distance.h>

#include <string_view>

namespace torch_attention::weights {

namespace {

// This many steps take some tenths of a second.
constexpr size_t kMaxSteps = 100'000'000;

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
    const auto found = edit_distance(stem(text), stem(candidate));
    if (found < best) {
      best = found;
      nearest = candidate;
    }
  }
  return nearest;
}

} // namespace torch_attention::weights
