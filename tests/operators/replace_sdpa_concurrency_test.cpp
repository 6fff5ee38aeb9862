#include <operators/random_sdpa.h>
#include <operators/replaced_sdpa.h>
#include <support/test.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace replace_sdpa_concurrency_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE(
    "LibTorch's attention is replaced and restored while threads compute") {
  const SdpaReplaced before(false);
  const auto calls = draw_sdpa_calls();
  const auto factors = draw_sdpa_factors();
  std::vector<SdpaResult> expected;
  int64_t errors = 0;
  for (const auto& call : calls) {
    expected.push_back(result_of(call, factors));
    errors += expected.back().error.empty() ? 0 : 1;
  }

  constexpr size_t kThreads = 8;
  std::vector<SdpaResult> results(calls.size());
  std::atomic<size_t> next{0};
  std::atomic<size_t> running{kThreads};
  const auto counts = sdpa_calls();
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (auto i = next++; i < calls.size(); i = next++) {
        results[i] = result_of(calls[i], factors);
      }
      --running;
    });
  }
  while (running > 0) {
    replace_sdpa();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    restore_sdpa();
    // A mere yield takes as long as the other threads like.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    check_result(calls[i], results[i], expected[i]);
  }
  CHECK(sdpa_calls().ours - counts.ours > 100);
  // Only calls that LibTorch refuses are passed on to it.
  CHECK(sdpa_calls().libtorch - counts.libtorch <= errors);
}

} // namespace replace_sdpa_concurrency_test
