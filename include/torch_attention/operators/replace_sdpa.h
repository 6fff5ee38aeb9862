#pragma once

#include <torch_attention/export.h>

#include <cstdint>

/// LibTorch's own attention operators, computed by our kernels.
namespace torch_attention {

/// Lets our kernels compute LibTorch's attention on the CPU, in the whole
/// process: `at::scaled_dot_product_attention` in C++, TorchScript and Python,
/// with gradients, dropout, grouped heads and masks; the operator below it,
/// `_scaled_dot_product_flash_attention_for_cpu`, with its backward pass, which
/// compiled programs call; and `_native_multi_head_attention`, which Python's
/// TransformerEncoder calls in evaluation. Results equal LibTorch's within
/// rounding, in the same memory layout. Only dropout differs: its random
/// numbers come from our own generator, which LibTorch's generator seeds.
///
/// Other calls still go to LibTorch's kernels: other devices and dtypes, wrong
/// arguments, tensor subclasses, tracing, forward-mode derivatives, calls under
/// `at::globalContext().setSDPUseFlash(false)` (in Python
/// `sdpa_kernel(SDPBackend.MATH)`), and all calls while `default_kernel()` is
/// `Kernel::kReference`.
///
/// May be called from any thread, also while others compute; calls that have
/// begun end with the kernel that they began with. A second call changes
/// nothing. With the environment variable TORCH_ATTENTION_REPLACE_SDPA=1 the
/// library calls it when it is loaded.
///
/// Example:
/// ```
/// int main() {
///   torch_attention::replace_sdpa();
///   auto model = torch::jit::load("model.pt");
/// ```
TORCH_ATTENTION_API void replace_sdpa();

/// Restores LibTorch's attention, however often `replace_sdpa` was called.
/// Graphs that autograd recorded before keep their backward pass.
TORCH_ATTENTION_API void restore_sdpa();

/// Returns whether our kernels compute LibTorch's attention now.
TORCH_ATTENTION_API bool is_sdpa_replaced();

/// The number of calls of LibTorch's attention while it was replaced.
struct SdpaCalls {
  /// computed by our kernels
  int64_t ours = 0;
  /// passed on to LibTorch's kernels
  int64_t libtorch = 0;
};

/// Returns the calls since the program began, which shows whether a program
/// profits from `replace_sdpa`. A backward pass of LibTorch's operator counts
/// as a call, too; the backward pass of our own does not.
TORCH_ATTENTION_API SdpaCalls sdpa_calls();

} // namespace torch_attention
