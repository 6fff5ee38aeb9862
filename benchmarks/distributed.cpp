// Measures a layer shared by the processes of torchrun, forward and backward,
// beside one process with as many threads: interleaved, the others waiting. Of
// each step, how long the first process computed and how long it waited for
// others.
//
//   torchrun --no-python --nproc-per-node 2 torch_attention_bench_distributed
//   [T]
//
// Causal, B 1, 12 heads of 64, float32; T tokens, 8192 by default. Outputs are
// compared first.

#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/tensor_parallel.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace torch_attention;
namespace dist = torch_attention::distributed;

constexpr int64_t kWidth = 768;
constexpr int64_t kHeads = 12;
constexpr int kRounds = 7;
/// Relative to the largest number: the limit of the tests.
constexpr double kAllowed = 1e-6;

/// One way to compute the layer: its module and this process's tokens.
struct Candidate {
  std::string name;
  MultiHeadAttention module;
  torch::Tensor x;
  torch::Tensor expected;
  /// after the backward pass
  std::function<void()> finish;
  std::vector<double> seconds;
  /// of these, in the group's operations
  std::vector<double> waited;

  void step() {
    module->zero_grad();
    module->forward(x).square().sum().backward();
    finish();
  }
};

MultiHeadAttention make_module(int64_t T) {
  torch::manual_seed(1); // the same weights in all processes
  return MultiHeadAttention(MultiHeadAttentionOptions(kWidth, kWidth, T, kHeads)
                                .register_mask(false));
}

void wait_for_all(const dist::Group& group) {
  group->barrier()->wait();
}

std::vector<Candidate> make_candidates(
    const torch::Tensor& x,
    const torch::Tensor& expected,
    const dist::Group& group) {
  const auto T = x.size(1);
  const auto nothing = [] {};
  std::vector<Candidate> all;
  all.push_back(
      {"tensor_parallel", make_module(T), x, expected, nothing, {}, {}});
  dist::tensor_parallel(*all.back().module, group);
  for (const bool all_to_all : {false, true}) {
    const auto sequence = dist::SequenceOptions()
                              .layout(dist::TokenLayout::kBalanced)
                              .all_to_all(all_to_all);
    const auto own = [&](const torch::Tensor& whole) {
      return dist::own_tokens(whole, 1, group, sequence.layout());
    };
    auto module = make_module(T);
    dist::sequence_parallel(*module, group, sequence);
    all.push_back(
        {all_to_all ? "all_to_all" : "ring",
         module,
         own(x),
         own(expected),
         [module, group] { dist::sum_gradients(module->parameters(), group); },
         {},
         {}});
  }
  return all;
}

void check(Candidate& candidate) {
  const torch::NoGradGuard no_grad;
  const auto difference =
      (candidate.module->forward(candidate.x) - candidate.expected)
          .abs()
          .max()
          .item<double>();
  const auto size = candidate.expected.abs().max().item<double>();
  TORCH_CHECK(
      difference <= kAllowed * std::max(1.0, size),
      candidate.name,
      ": expected the outputs of one process, but they differ by ",
      difference);
}

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  return time.count();
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

void measure(int64_t T) {
  const auto group = dist::group_from_environment();
  const auto processes = static_cast<int>(group->getSize());
  const bool is_first = group->getRank() == 0;
  torch::manual_seed(2);
  const auto x = torch::randn({1, T, kWidth});
  Candidate whole{"one process", make_module(T), x, {}, [] {}, {}, {}};
  {
    const torch::NoGradGuard no_grad;
    whole.expected = whole.module->forward(x);
  }
  auto candidates = make_candidates(x, whole.expected, group);
  for (auto& candidate : candidates) {
    check(candidate);
  }
  for (int round = 0; round <= kRounds; ++round) {
    wait_for_all(group);
    if (is_first) {
      at::set_num_threads(processes);
      whole.seconds.push_back(seconds_of([&] { whole.step(); }));
      at::set_num_threads(1);
    }
    for (auto& candidate : candidates) {
      wait_for_all(group);
      dist::reset_traffic();
      double at_the_end = 0;
      candidate.seconds.push_back(seconds_of([&] {
        candidate.step();
        at_the_end = seconds_of([&] { wait_for_all(group); });
      }));
      candidate.waited.push_back(dist::traffic().waited + at_the_end);
    }
  }
  if (!is_first) {
    return;
  }
  // The first round warms up.
  const auto rounds = [](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + 1, all.end());
  };
  const auto alone = rounds(whole.seconds);
  std::cout << std::setprecision(3) << "one process of " << processes
            << " threads, T " << T << ": " << median(alone) << " s\n";
  for (const auto& candidate : candidates) {
    const auto seconds = rounds(candidate.seconds);
    const auto waited = rounds(candidate.waited);
    std::vector<double> ratios;
    std::vector<double> computed;
    for (size_t i = 0; i < seconds.size(); ++i) {
      ratios.push_back(seconds[i] / alone[i]);
      computed.push_back(seconds[i] - waited[i]);
    }
    const auto [least, most] =
        std::minmax_element(ratios.begin(), ratios.end());
    std::cout << candidate.name << ", " << processes
              << " processes of 1 thread: " << median(seconds)
              << " s, of which computing " << median(computed)
              << " s and waiting " << median(waited) << " s; " << median(ratios)
              << " times as long (" << *least << " to " << *most << ")\n";
  }
}

} // namespace

int main(int argc, char** argv) {
  try {
    measure(argc > 1 ? std::stoll(argv[1]) : 8192);
  } catch (const std::exception& error) {
    std::cerr << "bench_distributed: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
