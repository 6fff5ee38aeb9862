#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace torch_attention::tools {

/// How values are spread.
struct Spread {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
};

/// Of at least one value.
Spread spread_of(std::vector<double> values);

/// The ratio of the medians of `numerators` and `denominators`, with p10 and
/// p90 of the ratios round by round. A slow moment of the machine slows both of
/// a round, and so leaves their ratio.
Spread ratio_of(
    const std::vector<double>& numerators,
    const std::vector<double>& denominators);

/// How long is measured.
struct Effort {
  /// No new round begins after this time ...
  double seconds = 8;
  /// ... nor before or after so many.
  int64_t least_rounds = 7;
  int64_t most_rounds = 31;
  /// What is shorter is repeated in a round until it takes so long.
  double sample_seconds = 5e-3;
};

/// Seconds of one call of each function, [function][round]. They take turns,
/// and each round begins with another one.
std::vector<std::vector<double>> interleave(
    const std::vector<std::function<void()>>& functions,
    const Effort& effort);

} // namespace torch_attention::tools
