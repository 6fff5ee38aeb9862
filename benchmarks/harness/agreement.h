#pragma once

#include <harness/candidate.h>

#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The agreement of a candidate's output and gradients with ours, without
/// dropout.
struct Agreement {
  /// The largest difference, relative to the largest element of its tensor.
  double difference = 0;
  /// The reason why no figure may be reported; empty if the candidate does the
  /// same work.
  std::string problem;
};

/// Runs all candidates once, and once more with dropout. The random streams
/// differ, but dropout must disturb the output as much as in ours. Ours is the
/// first candidate.
std::vector<Agreement> compare_candidates(
    const std::vector<Candidate>& candidates);

} // namespace torch_attention::benchmarks
