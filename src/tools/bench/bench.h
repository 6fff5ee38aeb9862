#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// What is asked of `bench`.
struct BenchOptions {
  /// Ends within two minutes on two cores: fewer rounds, and without the cases
  /// that take minutes.
  bool quick = false;
  /// Also a series of forward passes by T, for plots.
  bool series = false;
  /// Only print the names of the cases.
  bool list = false;
  /// Only cases whose name contains this; empty for all.
  std::string only;
  /// 0 for LibTorch's own number.
  int64_t threads = 0;
  /// Files to write; empty for none.
  std::string json;
  std::string csv;
};

/// Measures our modules and functions and those that do the same work, by turns
/// in this process, and prints the table to `out`. No figure is given where the
/// outputs differ. Returns whether all agreed.
bool bench(const BenchOptions& options, std::ostream& out);

} // namespace torch_attention::tools
