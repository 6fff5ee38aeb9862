// The last process ends, or stops, in the middle of an operation. The others
// have to notice in time, with a message, and to end themselves.
//
//   killed_process tensor|ring_forward|ring_backward|all_to_all|decode|
//       sum_gradients|save killed|stopped

#include <ATen/record_function.h>
#include <torch/torch.h>
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/tensor_parallel.h>
#include <torch_attention/distributed/weights.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

namespace {

using namespace torch_attention;
namespace dist = torch_attention::distributed;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout(3);
/// How much longer than the timeout a process may take to notice.
constexpr double kSlack = 5;

/// The last process does not live to see so many operators of c10d begin. All
/// of them count, since LibTorch 2.15 has other names for some.
struct Trap {
  int operators = 0;
  int signal = SIGKILL;
};

Trap trap;

std::unique_ptr<at::ObserverContext> spring(const at::RecordFunction& called) {
  const std::string name = called.name();
  if (name.rfind("c10d::", 0) == 0 && --trap.operators == 0) {
    std::raise(trap.signal);
  }
  return nullptr;
}

struct Place {
  /// Runs well before the process ends.
  std::function<void()> prepare;
  std::function<void()> run;
  /// From `run` on.
  int operators = 0;
  /// A text that the error contains.
  std::string text;
};

struct Tensors {
  torch::Tensor x = torch::randn({1, 24, 16, 8}).requires_grad_();
  torch::Tensor output;
};

Place place_of(const std::string& name, const dist::Group& group) {
  const auto tensors = std::make_shared<Tensors>();
  const auto attend = [=](auto attention) {
    return [=] {
      const auto& x = tensors->x;
      tensors->output = attention(x, x, x, group, {}, {});
    };
  };
  const auto backward = [=] { tensors->output.sum().backward(); };
  const auto nothing = [] {};
  constexpr int kFirst = 1;
  constexpr int kAfterComparison = 2;
  if (name == "ring_forward") {
    return {
        nothing,
        attend(dist::ring_attention),
        kAfterComparison,
        "the exchange of keys and values"};
  }
  if (name == "ring_backward") {
    // The first gradients go when keys went to and came from all others.
    return {
        attend(dist::ring_attention),
        backward,
        2 * (group->getSize() - 1) + kFirst,
        // Words of each message that may come first.
        "keys and values"};
  }
  if (name == "all_to_all") {
    return {
        nothing,
        attend(dist::all_to_all_attention),
        kAfterComparison,
        "the exchange of heads"};
  }
  if (name == "sum_gradients") {
    return {
        nothing,
        [=] { dist::sum_gradients({tensors->x}, group); },
        kAfterComparison,
        "the sum of gradients"};
  }
  if (name == "decode") {
    MultiHeadAttention whole(MultiHeadAttentionOptions(8, 48, 16, 24));
    whole->eval();
    dist::sequence_parallel(*whole, group);
    const auto cache = std::make_shared<KVCache>(whole->make_cache(1));
    return {
        nothing,
        [=]() mutable {
          whole->decode(torch::randn({1, 4, 8}), *cache);
        },
        kAfterComparison,
        "the joining of parts of keys"};
  }
  auto module =
      dist::tensor_parallel(MultiHeadAttentionOptions(8, 48, 16, 24), group);
  if (name == "tensor") {
    const auto x = torch::randn({1, 4, 8}).requires_grad_();
    return {
        [=]() mutable { tensors->output = module->forward(x); },
        backward,
        kFirst,
        "the sum of gradients of inputs"};
  }
  TORCH_CHECK(name == "save", "no such place: ", name);
  return {
      nothing,
      [=] { dist::save_weights(*module, "killed.safetensors", group); },
      kAfterComparison,
      "the joining of weights"};
}

/// Returns whether the others get a clear error in time.
bool is_noticed(Place& place, int signal, const dist::Group& group) {
  place.prepare();
  if (group->getRank() == group->getSize() - 1) {
    trap = {place.operators, signal};
    at::addGlobalCallback(
        at::RecordFunctionCallback(spring).scopes({at::RecordScope::FUNCTION}));
  }
  const auto start = Clock::now();
  try {
    place.run();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    const std::chrono::duration<double> time = Clock::now() - start;
    std::cout << message << "\nafter " << time.count() << " s\n";
    return message.find(place.text + " failed in process") !=
        std::string::npos &&
        time.count() < kTimeout.count() + kSlack;
  }
  std::cout << "no error\n";
  return false;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const bool stopped = std::strcmp(argv[2], "stopped") == 0;
  // Processes of a busy machine start seconds after each other.
  const auto slow = dist::GroupOptions().timeout(std::chrono::seconds(60));
  const auto all = dist::group_from_environment(slow);
  all->barrier()->wait();
  const auto group = dist::gloo_group(
      dist::store_from_environment(slow),
      all->getRank(),
      all->getSize(),
      dist::GroupOptions().timeout(kTimeout).name("short"));
  auto place = place_of(argv[1], group);
  return is_noticed(place, stopped ? SIGSTOP : SIGKILL, group) ? 0 : 1;
}
