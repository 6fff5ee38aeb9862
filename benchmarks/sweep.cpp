// Measures attention alone at every size between a decode step and a prompt,
// and prints a line of CSV for each: for benchmarks/sweep.py, which looks for
// sizes that take longer than their neighbours.
//
//   torch_attention_bench_sweep [DTYPE [backward]] > sweep.csv
//
// DTYPE is Float (the default), Double, BFloat16 or Half. "backward": both
// passes.

#include <harness/work.h>
#include <tools/measure.h>
#include <torch_attention/nn/functional/attention.h>

#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace torch_attention;
using benchmarks::Work;

constexpr int64_t kKeyHeads = 2;
constexpr int64_t kHeadDim = 64;

/// T tokens at the end of S: heads in groups that read the same keys.
struct Size {
  int64_t T;
  int64_t S;
  int64_t group;
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

Work work_of(const Size& size, torch::ScalarType dtype, bool backward) {
  auto work =
      benchmarks::attention_work(1, kKeyHeads * size.group, size.T, kHeadDim);
  work.S = size.S;
  work.G = kKeyHeads;
  work.dtype = dtype;
  work.backward = backward;
  return work;
}

/// Returns the least time of a call: what disturbs it only adds.
double seconds_of(const Work& work) {
  tools::Effort effort;
  effort.least_rounds = 8;
  effort.most_rounds = 8;
  effort.sample_seconds = 2e-3;
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({1, heads, tokens, work.D})
        .to(work.dtype)
        .set_requires_grad(work.backward);
  };
  const auto query = draw(work.H, work.T);
  const auto key = draw(work.G, work.S);
  const auto value = draw(work.G, work.S);
  const auto grad_output =
      at::randn({1, work.H, work.T, work.D}).to(work.dtype);
  const auto options = functional::ScaledDotProductAttentionFuncOptions()
                           .enable_gqa(true)
                           .causal(true);
  const auto run = [&] {
    const auto output =
        functional::scaled_dot_product_attention(query, key, value, options);
    if (work.backward) {
      torch::autograd::grad({output}, {query, key, value}, {grad_output});
    }
  };
  const auto seconds = tools::interleave({run}, effort).front();
  return *std::min_element(seconds.begin(), seconds.end());
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
      const auto work = work_of(size, dtype, backward);
      std::cout << torch::toString(dtype) << "," << size.T << "," << size.S
                << "," << size.group << "," << seconds_of(work) << ","
                << work.flops() << "," << work.key_bytes() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
