#pragma once

#include <harness/case.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The options of a run.
struct RunOptions {
  /// Ends within two minutes on two cores: with fewer rounds, and without the
  /// cases that take minutes.
  bool quick = false;
  /// Also runs a series of forward passes by T, for plots.
  bool series = false;
  /// Also runs attention alone in many shapes and dtypes.
  bool shapes = false;
  /// Only prints the names of the cases.
  bool list = false;
  /// Only runs cases whose name contains this; empty: all.
  std::string only;
  /// 0: LibTorch's own number.
  int64_t threads = 0;
  /// Files to write; empty: none.
  std::string json;
  std::string csv;
};

/// Measures the chosen cases, the candidates of each interleaved in this
/// process, and prints the table to `out`. Gives no figure where the outputs
/// differ. Returns whether all agreed.
bool run_cases(
    std::vector<Case> all,
    const RunOptions& options,
    std::ostream& out);

} // namespace torch_attention::benchmarks
