#pragma once

#include "training.h"

#include <string>

namespace gpt {

/// The progress of training on standard error: a line that is drawn again and
/// again on a terminal, else a line for each checkpoint.
class ProgressLine {
 public:
  explicit ProgressLine(int64_t steps);

  void show(const TrainingProgress& progress);

 private:
  int64_t steps_;
  bool terminal_;
};

} // namespace gpt
