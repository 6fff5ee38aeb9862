#pragma once

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <vector>

/// The comparison of two models, for the programs of this folder.
namespace swap_example {

/// Prints the largest difference of two outputs. Throws c10::Error if it is
/// beyond rounding.
inline void check_same(
    const char* what,
    const torch::Tensor& ours,
    const torch::Tensor& theirs) {
  std::cout << what << ": largest difference "
            << (ours - theirs).abs().max().item<double>() << '\n';
  TORCH_CHECK(
      torch::allclose(ours, theirs, /*rtol=*/1e-4, /*atol=*/1e-5),
      what,
      ": the outputs differ");
}

/// Prints the medians of the times of two calls, which take turns.
inline void compare_times(
    const std::function<torch::Tensor()>& before,
    const std::function<torch::Tensor()>& after) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kTurns = 7;
  const std::vector<std::function<torch::Tensor()>> calls = {before, after};
  std::vector<std::vector<double>> times(calls.size());
  for (size_t turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto start = Clock::now();
      calls[i]();
      times[i].push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
    }
  }
  for (auto& call_times : times) {
    std::sort(call_times.begin(), call_times.end());
  }
  std::cout << "before: " << times[0][kTurns / 2]
            << " ms, after: " << times[1][kTurns / 2] << " ms\n";
}

} // namespace swap_example
