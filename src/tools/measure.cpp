#include <tools/measure.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace torch_attention::tools {

namespace {

using MeasureClock = std::chrono::steady_clock;

double seconds_since(MeasureClock::time_point start) {
  return std::chrono::duration<double>(MeasureClock::now() - start).count();
}

/// A number of calls and their time.
struct Sample {
  int64_t calls = 1;
  double seconds = 0;

  double seconds_per_call() const {
    return seconds / static_cast<double>(calls);
  }
};

/// Makes as many calls as take about `seconds`, at least one.
Sample sample_of(const std::function<void()>& function, double seconds) {
  constexpr int64_t kMost = 1 << 20;
  constexpr double kFastestGrowth = 32;
  Sample sample;
  sample.seconds = seconds_of(function, sample.calls);
  // The first calls are slower than the rest: measure again until the time
  // fits.
  while (sample.seconds < seconds / 2 && sample.calls < kMost) {
    const auto growth = std::clamp(
        seconds / std::max(sample.seconds, 1e-9), 2.0, kFastestGrowth);
    sample.calls =
        static_cast<int64_t>(static_cast<double>(sample.calls) * growth);
    sample.seconds = seconds_of(function, sample.calls);
  }
  return sample;
}

/// Returns a quantile of values that are sorted.
double quantile(const std::vector<double>& values, double q) {
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(q * last))];
}

} // namespace

Spread spread_of(std::vector<double> values) {
  TORCH_CHECK(!values.empty(), "spread_of: expected values, but got none");
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9)};
}

Spread ratio_of(
    const std::vector<double>& numerators,
    const std::vector<double>& denominators) {
  TORCH_CHECK(
      numerators.size() == denominators.size(),
      "ratio_of: expected as many numerators as denominators, but got ",
      numerators.size(),
      " and ",
      denominators.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < numerators.size(); ++i) {
    ratios.push_back(numerators[i] / denominators[i]);
  }
  auto spread = spread_of(std::move(ratios));
  spread.median = spread_of(numerators).median / spread_of(denominators).median;
  return spread;
}

double seconds_of(const std::function<void()>& function, int64_t calls) {
  const auto start = MeasureClock::now();
  for (int64_t i = 0; i < calls; ++i) {
    function();
  }
  return seconds_since(start);
}

std::vector<std::vector<double>> interleave(
    const std::vector<std::function<void()>>& functions,
    const Effort& effort,
    const std::function<void()>& prepare) {
  const auto start = MeasureClock::now();
  std::vector<int64_t> calls;
  std::vector<std::vector<double>> seconds;
  // The first round also finds the numbers of calls.
  for (const auto& function : functions) {
    prepare();
    const auto sample = sample_of(function, effort.sample_seconds);
    calls.push_back(sample.calls);
    seconds.push_back({sample.seconds_per_call()});
  }
  for (int64_t round = 1; round < effort.most_rounds; ++round) {
    if (round >= effort.least_rounds && seconds_since(start) > effort.seconds) {
      break;
    }
    for (size_t turn = 0; turn < functions.size(); ++turn) {
      const auto i = (turn + static_cast<size_t>(round)) % functions.size();
      prepare();
      const Sample sample{calls[i], seconds_of(functions[i], calls[i])};
      seconds[i].push_back(sample.seconds_per_call());
    }
  }
  return seconds;
}

} // namespace torch_attention::tools
