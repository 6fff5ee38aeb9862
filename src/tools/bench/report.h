#pragma once

#include <tools/bench/cases.h>
#include <tools/bench/machine.h>
#include <tools/bench/measure.h>
#include <tools/bench/memory.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// What was measured of one candidate.
struct CandidateResult {
  std::string name;
  Spread seconds;
  /// Its time to ours; none for ours.
  std::optional<Spread> ratio;
  /// Useful FLOP/s or bytes/s of the case's work.
  double per_second = 0;
  /// The same, as a share of the roof measured in the same rounds.
  double share_of_roof = 0;
  PeakMemory peak_memory;
  /// From ours, relative to the largest element.
  double difference = 0;
};

/// What was measured of one case.
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
  /// Why there are no figures; empty if there are.
  std::string problem;
};

/// The roof of the whole run, before the cases.
struct RoofResult {
  /// How `products` are reached.
  std::string product;
  Spread products;
  Spread reading;
  Spread triad;
};

/// What a run of the benchmark gives.
struct BenchResult {
  Machine machine;
  RoofResult roof;
  bool is_quick = false;
  std::vector<CaseResult> cases;
};

/// The machine, the roof, and the table's head.
void print_head(const BenchResult& result, std::ostream& out);

/// Some lines of the table.
void print_case(const CaseResult& result, std::ostream& out);

void write_json(const BenchResult& result, std::ostream& out);

/// A line for each candidate.
void write_csv(const BenchResult& result, std::ostream& out);

} // namespace torch_attention::tools
