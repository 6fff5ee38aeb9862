#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace torch_attention::tools {

/// The spread of values.
struct Spread {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
};

/// Returns the spread of the values, of which there is at least one.
Spread spread_of(std::vector<double> values);

/// Returns the ratio of the medians of `numerators` and `denominators`, with
/// p10 and p90 of the ratios round by round. A slow moment of the machine slows
/// both of a round and leaves their ratio as it is.
Spread ratio_of(
    const std::vector<double>& numerators,
    const std::vector<double>& denominators);

/// Returns the seconds that `calls` calls take.
double seconds_of(const std::function<void()>& function, int64_t calls = 1);

/// The limits of a measurement.
struct Effort {
  /// No new round begins after this time ...
  double seconds = 8;
  /// ... but there are at least and at most so many rounds.
  int64_t least_rounds = 7;
  int64_t most_rounds = 31;
  /// Shorter calls are repeated in a round until they take so long.
  double sample_seconds = 5e-3;
};

/// Returns the seconds of one call of each function, [function][round]. The
/// functions take turns, and each round begins with another one. `prepare` is
/// called before each turn, and its time is not counted.
std::vector<std::vector<double>> interleave(
    const std::vector<std::function<void()>>& functions,
    const Effort& effort,
    const std::function<void()>& prepare = [] {});

} // namespace torch_attention::tools
