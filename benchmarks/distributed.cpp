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

#include <tools/comparison.h>
#include <tools/measure.h>
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/tensor_parallel.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
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

/// One way to share the layer: its module and this process's tokens.
struct Sharing {
  std::string name;
  MultiHeadAttention module;
  torch::Tensor x;
  torch::Tensor expected;
  /// after the backward pass
  std::function<void()> finish;
  /// The seconds of each step in the group's operations.
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

std::vector<Sharing> make_sharings(
    const torch::Tensor& x,
    const torch::Tensor& expected,
    const dist::Group& group) {
  const auto T = x.size(1);
  const auto nothing = [] {};
  std::vector<Sharing> all;
  all.push_back({"tensor_parallel", make_module(T), x, expected, nothing, {}});
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
         {}});
  }
  return all;
}

void check(Sharing& sharing) {
  const torch::NoGradGuard no_grad;
  const auto scale = std::max(1.0, tools::largest_of(sharing.expected));
  const auto difference = tools::compare(
      sharing.module->forward(sharing.x),
      sharing.expected,
      scale,
      kAllowed * scale);
  TORCH_CHECK(
      difference.is_allowed(),
      sharing.name,
      ": expected the outputs of one process, but they differ by ",
      difference.absolute);
}

/// Returns the seconds of one step, [way][round]; the first way is one process
/// alone. All processes take the turns alike.
std::vector<std::vector<double>> measure_steps(
    Sharing& whole,
    std::vector<Sharing>& sharings,
    const dist::Group& group) {
  std::vector<std::function<void()>> steps{[&] {
    if (group->getRank() == 0) {
      at::set_num_threads(group->getSize());
      whole.step();
      at::set_num_threads(1);
    }
  }};
  for (auto& sharing : sharings) {
    steps.emplace_back([&] {
      sharing.step();
      const auto at_the_end = tools::seconds_of([&] { wait_for_all(group); });
      sharing.waited.push_back(dist::traffic().waited + at_the_end);
    });
  }
  tools::Effort effort;
  effort.least_rounds = kRounds + 1;
  effort.most_rounds = kRounds + 1;
  effort.sample_seconds = 0; // one step
  return tools::interleave(steps, effort, [&] {
    wait_for_all(group);
    dist::reset_traffic();
  });
}

/// The first round warms up.
std::vector<double> later_rounds(const std::vector<double>& all) {
  return std::vector<double>(all.begin() + 1, all.end());
}

void print(
    const std::vector<Sharing>& sharings,
    const std::vector<std::vector<double>>& all_seconds,
    int processes) {
  const auto alone = later_rounds(all_seconds.front());
  for (size_t i = 0; i < sharings.size(); ++i) {
    const auto seconds = later_rounds(all_seconds[i + 1]);
    const auto waited = later_rounds(sharings[i].waited);
    std::vector<double> computed;
    for (size_t round = 0; round < seconds.size(); ++round) {
      computed.push_back(seconds[round] - waited[round]);
    }
    const auto ratio = tools::ratio_of(seconds, alone);
    std::cout << sharings[i].name << ", " << processes
              << " processes of 1 thread: " << tools::spread_of(seconds).median
              << " s, of which computing " << tools::spread_of(computed).median
              << " s and waiting " << tools::spread_of(waited).median << " s; "
              << ratio.median << " times as long (" << ratio.p10 << " to "
              << ratio.p90 << ")\n";
  }
}

void measure(int64_t T) {
  const auto group = dist::group_from_environment();
  torch::manual_seed(2);
  const auto x = torch::randn({1, T, kWidth});
  Sharing whole{"one process", make_module(T), x, {}, [] {}, {}};
  {
    const torch::NoGradGuard no_grad;
    whole.expected = whole.module->forward(x);
  }
  auto sharings = make_sharings(x, whole.expected, group);
  for (auto& sharing : sharings) {
    check(sharing);
  }
  const auto seconds = measure_steps(whole, sharings, group);
  if (group->getRank() == 0) {
    const auto processes = static_cast<int>(group->getSize());
    std::cout << std::setprecision(3) << "one process of " << processes
              << " threads, T " << T << ": "
              << tools::spread_of(later_rounds(seconds.front())).median
              << " s\n";
    print(sharings, seconds, processes);
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
