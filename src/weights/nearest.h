#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights {

/// Finds texts with a similar spelling, in a limited time: both a file and a
/// module may have a million keys.
class NearestText {
 public:
  /// `candidates` must outlive it.
  explicit NearestText(const std::vector<std::string>& candidates);

  /// Returns the candidate whose part before the last dot has the smallest
  /// Levenshtein distance to the one of `text`; none if all differ by more than
  /// a third of it. The parts after the last dot must be equal.
  std::optional<std::string> find(const std::string& text);

 private:
  const std::vector<std::string>& candidates_;
  size_t steps_left_;
};

} // namespace torch_attention::weights
