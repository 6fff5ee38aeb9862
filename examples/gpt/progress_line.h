#pragma once

#include "training.h"

#include <chrono>
#include <optional>

namespace gpt {

/// The progress of training on standard error: on a terminal a line that is
/// drawn again and again, else a line for the first step, for each checkpoint,
/// and every ten seconds.
class ProgressLine {
 public:
  ProgressLine();

  void show(const TrainingProgress& progress);

 private:
  bool terminal_;
  std::optional<std::chrono::steady_clock::time_point> shown_;
};

} // namespace gpt
