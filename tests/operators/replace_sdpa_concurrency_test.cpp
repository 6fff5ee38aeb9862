#include <operators/replaced_sdpa.h>
#include <support/close.h>
#include <support/test.h>

#include <atomic>
#include <thread>

namespace replace_sdpa_concurrency_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE(
    "LibTorch's attention is replaced and restored while threads compute") {
  torch::manual_seed(1);
  const SdpaReplaced before(false);
  const auto x = torch::randn({2, 2, 9, 8});
  const auto step = [&] {
    const auto query = x.clone().requires_grad_();
    const auto output = at::scaled_dot_product_attention(
        query, x, x, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return torch::autograd::grad(
        {output}, {query}, {torch::ones_like(output)})[0];
  };
  const auto expected = step();

  constexpr size_t kThreads = 8;
  std::atomic<size_t> running{kThreads};
  std::vector<std::thread> threads;
  std::vector<double> differences(kThreads, 0);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        const auto difference = (step() - expected).abs().max().item<double>();
        differences[i] = std::max(differences[i], difference);
      }
      --running;
    });
  }
  const auto calls = sdpa_calls();
  while (running > 0) {
    replace_sdpa();
    std::this_thread::yield();
    restore_sdpa();
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto difference : differences) {
    CHECK(difference < 1e-5);
  }
  CHECK(sdpa_calls().libtorch == calls.libtorch);
}

} // namespace replace_sdpa_concurrency_test
