#include <support/close.h>
#include <support/test.h>

#include <thread>

namespace concurrency_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("Eight threads run one module at once and get the same results") {
  torch::manual_seed(1);
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  CAPTURE(kernel);
  MultiHeadAttention multi_head(
      MultiHeadAttentionOptions(8, 8, 16, 2).kernel(kernel));
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(8, 8, 16, 2).kernel(kernel));
  const auto x = torch::rand({2, 16, 8});
  torch::NoGradGuard no_grad;
  const auto expected_multi_head = multi_head(x);
  const auto expected_wrapper = wrapper(x);

  constexpr size_t kThreads = 8;
  std::vector<std::thread> threads;
  // Not bool, whose elements share bytes.
  std::vector<char> results(kThreads, 0);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      torch::NoGradGuard no_grad_in_thread;
      bool same = true;
      for (int repeat = 0; repeat < 20; ++repeat) {
        same = same && multi_head->forward(x).equal(expected_multi_head) &&
            wrapper->forward(x).equal(expected_wrapper);
      }
      results[i] = same ? 1 : 0;
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(results == std::vector<char>(kThreads, 1));
}

} // namespace concurrency_test
