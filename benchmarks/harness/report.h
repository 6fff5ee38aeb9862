#pragma once

#include <harness/case.h>
#include <harness/machine.h>
#include <harness/memory.h>
#include <tools/measure.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The figures of one candidate.
struct CandidateResult {
  std::string name;
  tools::Spread seconds;
  /// The ratio of its time to ours; none for ours.
  std::optional<tools::Spread> ratio;
  /// Useful FLOP/s or bytes/s of the case's work.
  double per_second = 0;
  /// `per_second` as a share of the roof measured in the same rounds.
  double share_of_roof = 0;
  PeakMemory peak_memory;
  /// The difference from ours, relative to the largest element.
  double difference = 0;
};

/// The figures of one case.
struct CaseResult {
  std::string name;
  Work work;
  Recording recording = Recording::kNone;
  Bound bound = Bound::kProducts;
  /// Useful FLOPs or bytes, by `bound`.
  double amount = 0;
  double roof_per_second = 0;
  int64_t rounds = 0;
  std::vector<CandidateResult> candidates;
  /// The reason why there are no figures; empty if there are.
  std::string problem;
};

/// The roof of the whole run, measured before the cases.
struct RoofResult {
  /// The product that reaches `products`.
  std::string product;
  tools::Spread products;
  tools::Spread reading;
  tools::Spread triad;
};

/// The results of a run of the benchmark.
struct BenchResult {
  Machine machine;
  RoofResult roof;
  bool is_quick = false;
  std::vector<CaseResult> cases;
};

/// Prints the machine, the roof and the table's head.
void print_head(const BenchResult& result, std::ostream& out);

/// Prints some lines of the table.
void print_case(const CaseResult& result, std::ostream& out);

void write_json(const BenchResult& result, std::ostream& out);

/// Writes a line for each candidate.
void write_csv(const BenchResult& result, std::ostream& out);

} // namespace torch_attention::benchmarks
