// Measures attention alone at every size between a decode step and a prompt,
// and prints a line of CSV for each: for benchmarks/sweep.py, which looks for
// sizes that take longer than their neighbours.
//
//   torch_attention_bench_sweep [DTYPE [backward]] > sweep.csv
//
// DTYPE is Float (the default), Double, BFloat16 or Half. "backward": the pass
// forward and the one backward.

#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

namespace F = torch_attention::functional;

constexpr int64_t kKeyHeads = 2;
constexpr int64_t kHeadDim = 64;

/// T tokens at the end of S: heads in groups that read the same keys.
struct Size {
  int64_t T;
  int64_t S;
  int64_t group;

  /// Operations on the scores that are visible: two products, and five of the
  /// backward pass.
  double flops(bool backward) const {
    const auto pairs = T * S - T * (T - 1) / 2;
    return (backward ? 14.0 : 4.0) *
        static_cast<double>(kKeyHeads * group * kHeadDim * pairs);
  }

  /// Bytes of keys and values, read once; backward once more, and their
  /// gradients written.
  double bytes(torch::ScalarType dtype, bool backward) const {
    return (backward ? 6.0 : 2.0) *
        static_cast<double>(kKeyHeads * S * kHeadDim) *
        static_cast<double>(torch::elementSize(dtype));
  }
};

std::vector<Size> all_sizes() {
  std::vector<Size> sizes;
  for (const int64_t S : {16, 64, 256, 1024, 4096, 16384}) {
    for (const int64_t group : {1, 2, 4, 7, 8, 16, 32, 71}) {
      for (const int64_t T : {1,  2,  3,  4,  5,  6,  7,  8,  10, 12, 14,
                              16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64}) {
        if (T <= S) {
          sizes.push_back({T, S, group});
        }
      }
    }
  }
  return sizes;
}

torch::ScalarType dtype_of(const std::string& name) {
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    if (name == torch::toString(dtype)) {
      return dtype;
    }
  }
  TORCH_CHECK(
      false, "expected Float, Double, BFloat16 or Half, but got ", name);
}

/// Returns the least time of a call: what disturbs it only adds.
double seconds_of(const Size& size, torch::ScalarType dtype, bool backward) {
  using Clock = std::chrono::steady_clock;
  constexpr int kSamples = 7;
  constexpr double kSampleSeconds = 2e-3;
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({1, heads, tokens, kHeadDim})
        .to(dtype)
        .set_requires_grad(backward);
  };
  const auto query = draw(kKeyHeads * size.group, size.T);
  const auto key = draw(kKeyHeads, size.S);
  const auto value = draw(kKeyHeads, size.S);
  const auto grad_output =
      at::randn({1, kKeyHeads * size.group, size.T, kHeadDim}).to(dtype);
  const auto options =
      F::ScaledDotProductAttentionFuncOptions().enable_gqa(true).causal(true);
  const auto run = [&](int64_t calls) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      const auto output =
          F::scaled_dot_product_attention(query, key, value, options);
      if (backward) {
        torch::autograd::grad({output}, {query, key, value}, {grad_output});
      }
    }
    return std::chrono::duration<double>(Clock::now() - start).count() /
        static_cast<double>(calls);
  };
  auto least = run(2);
  const auto calls =
      std::max<int64_t>(1, static_cast<int64_t>(kSampleSeconds / least));
  for (int i = 0; i < kSamples; ++i) {
    least = std::min(least, run(calls));
  }
  return least;
}

} // namespace

int main(int argc, char** argv) {
  try {
    const auto dtype = dtype_of(argc > 1 ? argv[1] : "Float");
    const std::string pass = argc > 2 ? argv[2] : "";
    const bool backward = pass == "backward";
    TORCH_CHECK(
        backward || pass.empty(),
        "expected backward or nothing, but got ",
        pass);
    const c10::InferenceMode inference(!backward);
    std::cout << "dtype,T,S,group,seconds,flops,bytes\n";
    for (const auto& size : all_sizes()) {
      std::cout << torch::toString(dtype) << "," << size.T << "," << size.S
                << "," << size.group << "," << seconds_of(size, dtype, backward)
                << "," << size.flops(backward) << ","
                << size.bytes(dtype, backward) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
