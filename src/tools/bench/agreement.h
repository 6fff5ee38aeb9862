#pragma once

#include <tools/bench/candidates.h>

#include <string>
#include <vector>

namespace torch_attention::tools {

/// How far a candidate's output and gradients are from ours, without dropout.
struct Agreement {
  /// The largest difference, relative to the largest element of its tensor.
  double difference = 0;
  /// Why no figure may be reported; empty if the candidate does the same work.
  std::string problem;
};

/// Runs all candidates once, and with dropout once more: the random streams
/// differ, but what is dropped has to disturb the output as much as in ours.
/// Ours is the first.
std::vector<Agreement> compare_candidates(
    const std::vector<Candidate>& candidates);

} // namespace torch_attention::tools
