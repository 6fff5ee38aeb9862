// The number of threads that the kernels can keep busy. They are counted, since
// the tests run on few cores.

#include <cpu/test.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tasks_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

/// Threads that count how many of them each call of `parallel_for` can use, and
/// compute nothing.
class CountedThreads {
 public:
  explicit CountedThreads(int64_t count) {
    threads.count = count;
    threads.parallel_for =
        [this](int64_t n, const std::function<void(int64_t)>& /*fn*/) {
          counts.push_back(n);
        };
  }

  Threads threads;
  std::vector<int64_t> counts;
};

/// Causal attention of one sequence whose numbers nobody reads.
AttentionArguments<float> attention(
    int64_t H,
    int64_t G,
    int64_t T,
    int64_t S,
    int64_t D) {
  static float number = 0;
  AttentionArguments<float> a;
  a.batch_size = 1;
  a.num_heads = H;
  a.num_kv_heads = G;
  a.num_queries = T;
  a.num_keys = S;
  a.head_dim = D;
  a.value_dim = D;
  a.query.data = a.key.data = a.value.data = &number;
  a.rule.causal = true;
  return a;
}

constexpr int64_t kCores = 64;

int64_t forward_threads(const AttentionArguments<float>& a) {
  CountedThreads counted(kCores);
  // The results of so few rows are joined by one thread.
  const auto head_size = a.num_queries * a.value_dim;
  std::vector<float> output(static_cast<size_t>(a.num_heads * head_size));
  forward(
      a,
      Heads<float>{output.data(), {0, head_size, a.value_dim}},
      RowStatistics<float>{},
      counted.threads);
  return counted.counts.at(0);
}

} // namespace

TEST_CASE("There is work for 64 cores") {
  each_instruction_set<float>();
  // A prompt; decode steps of grouped heads, of one key head, of all.
  CHECK(forward_threads(attention(12, 12, 1024, 1024, 64)) == kCores);
  CHECK(forward_threads(attention(32, 8, 1, 8192, 128)) == kCores);
  CHECK(forward_threads(attention(32, 1, 1, 32768, 128)) == kCores);
  CHECK(forward_threads(attention(12, 12, 1, 4096, 64)) == kCores);
}

TEST_CASE("A backward pass has work for 64 cores") {
  each_instruction_set<float>();
  CountedThreads counted(kCores);
  const auto a = attention(12, 12, 1024, 1024, 64);
  BackwardArguments<float> gradients;
  backward(a, gradients, counted.threads);
  CHECK(counted.counts.at(0) == kCores);
}

} // namespace tasks_test
