#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace torch_attention::tools {

/// A progress bar on standard error. Shows nothing if that is not a terminal.
class ProgressBar {
 public:
  /// Prepares a bar of `total` steps, bytes for example.
  ProgressBar(const std::string& title, uint64_t total);

  /// Removes the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ProgressBar(ProgressBar&&) = delete;
  ProgressBar& operator=(ProgressBar&&) = delete;

  void advance(uint64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  void draw();

  std::string title_;
  uint64_t total_;
  uint64_t done_ = 0;
  bool visible_;
  Clock::time_point drawn_{};
};

} // namespace torch_attention::tools
