#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// The options of `bench`.
struct BenchOptions {
  /// Ends within two minutes on two cores: with fewer rounds, and without the
  /// cases that take minutes.
  bool quick = false;
  /// Also runs a series of forward passes by T, for plots.
  bool series = false;
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

/// Measures our modules and functions, and others that do the same work, by
/// turns in this process, and prints the table to `out`. Gives no figure where
/// the outputs differ. Returns whether all agreed.
bool bench(const BenchOptions& options, std::ostream& out);

} // namespace torch_attention::tools
