#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights {

/// Finds texts that are spelled almost like others, as long as that does not
/// take long: a file may have a million keys, and so may a module.
class NearestText {
 public:
  /// `candidates` must outlive it.
  explicit NearestText(const std::vector<std::string>& candidates);

  /// Returns the candidate whose path differs least from that of `text`,
  /// counted in single characters added, left out or replaced; none if all
  /// differ by more than a third of it. The parts after the last dot must be
  /// equal.
  std::optional<std::string> find(const std::string& text);

 private:
  const std::vector<std::string>& candidates_;
  size_t steps_left_;
};

} // namespace torch_attention::weights
