#pragma once

#include <c10/util/Exception.h>

#include <ctime>
#include <fstream>
#include <functional>
#include <string>

namespace torch_attention::testing {

/// The costs of a piece of work.
struct Costs {
  /// time of the processor, which other programs do not change
  double seconds = 0;
  /// The peak of the process's memory beyond its memory before the work.
  double megabytes = 0;
  /// The c10::Error that it threw, or "".
  std::string error;
};

/// Returns a line of /proc/self/status, in MB.
inline double process_megabytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::stod(line.substr(name.size() + 1)) / 1000;
    }
  }
  return 0;
}

/// Does the work and measures it.
inline Costs costs_of(const std::function<void()>& work) {
  Costs costs;
  // Resets the peak.
  std::ofstream("/proc/self/clear_refs") << 5;
  const auto before = process_megabytes("VmRSS");
  const auto start = std::clock();
  try {
    work();
  } catch (const c10::Error& error) {
    costs.error = error.what_without_backtrace();
  }
  costs.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  costs.megabytes = process_megabytes("VmHWM") - before;
  return costs;
}

} // namespace torch_attention::testing
