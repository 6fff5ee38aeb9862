// Of two processes the last one ends in the middle of a training step. The
// other has to notice, with a message, and to end itself.

#include <torch/torch.h>
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/tensor_parallel.h>

#include <chrono>
#include <csignal>
#include <iostream>

int main() {
  using namespace torch_attention;
  using Clock = std::chrono::steady_clock;
  const auto group = distributed::group_from_environment(
      distributed::GroupOptions().timeout(std::chrono::seconds(20)));
  auto attention = distributed::tensor_parallel(
      MultiHeadAttentionOptions(8, 48, 16, 24), group);
  const auto x = torch::randn({1, 4, 8}).requires_grad_();
  attention->forward(x).sum().backward();
  const auto output = attention->forward(x);
  if (group->getRank() == group->getSize() - 1) {
    std::raise(SIGKILL);
  }
  const auto start = Clock::now();
  try {
    output.sum().backward();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    const auto seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    std::cout << message << "\nafter " << seconds << " s\n";
    const bool is_clear =
        message.find("the sum of gradients of inputs failed in process") !=
        std::string::npos;
    return is_clear && seconds < 25 ? 0 : 1;
  }
  std::cout << "no error\n";
  return 1;
}
