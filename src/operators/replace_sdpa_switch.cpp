#include <operators/replace_sdpa_switch.h>

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/operators/replace_sdpa.h>

#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace torch_attention {

namespace {

bool asked_by_environment() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): while the library is loaded
  const auto* value = std::getenv("TORCH_ATTENTION_REPLACE_SDPA");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

std::atomic<bool> replaced{asked_by_environment()};
std::atomic<int64_t> calls_of_ours{0};
std::atomic<int64_t> calls_of_libtorch{0};

} // namespace

void replace_sdpa() {
  replaced = true;
}

void restore_sdpa() {
  replaced = false;
}

bool is_sdpa_replaced() {
  return replaced;
}

SdpaCalls sdpa_calls() {
  return {calls_of_ours, calls_of_libtorch};
}

namespace operators {

bool is_switched_on() {
  return replaced.load(std::memory_order_relaxed) &&
      default_kernel() != Kernel::kReference;
}

void count_call(bool ours) {
  (ours ? calls_of_ours : calls_of_libtorch)
      .fetch_add(1, std::memory_order_relaxed);
}

} // namespace operators

// For Python, as torch.ops.torch_attention.replace_sdpa().
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
TORCH_LIBRARY_FRAGMENT(torch_attention, library) {
  library.def("replace_sdpa() -> ()", TORCH_FN(replace_sdpa));
  library.def("restore_sdpa() -> ()", TORCH_FN(restore_sdpa));
  library.def("is_sdpa_replaced() -> bool", TORCH_FN(is_sdpa_replaced));
}

} // namespace torch_attention
