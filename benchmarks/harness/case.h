#pragma once

#include <harness/candidate.h>
#include <harness/recording.h>
#include <harness/roof.h>
#include <harness/work.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The runs that have a case.
enum class CaseSet {
  kUsual,
  /// Only `--series`.
  kSeries,
  /// Only `--shapes`.
  kShapes,
};

/// One line of the table: a work and the candidates that do it.
struct Case {
  std::string name;
  Work work;
  Recording recording = Recording::kNone;
  Bound bound = Bound::kProducts;
  /// True if `--quick` runs it.
  bool is_quick = true;
  CaseSet set = CaseSet::kUsual;
  /// Useful FLOPs or bytes, by `bound`, where `work` does not say them.
  std::optional<double> own_amount;
  /// Makes the candidates when it is the case's turn; ours comes first. `quick`
  /// leaves out those that only show how slow plain attention is.
  std::function<std::vector<Candidate>(bool quick)> make_candidates;

  /// Returns useful FLOPs or bytes, by `bound`.
  double amount() const;
};

/// Returns a case that a quick run leaves out. `make` draws from a generator
/// that was seeded.
Case drawn_case(
    const std::string& name,
    const Work& work,
    std::function<std::vector<Candidate>()> make);

} // namespace torch_attention::benchmarks
