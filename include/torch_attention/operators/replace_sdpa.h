#pragma once

#include <torch_attention/export.h>

#include <cstdint>

/// LibTorch's own attention, computed by our kernels.
namespace torch_attention {

/// From here on our kernels compute `at::scaled_dot_product_attention` on the
/// CPU, in this whole process: in C++, TorchScript and Python, with gradients,
/// dropout, grouped heads and masks; beneath it LibTorch's operator
/// `_scaled_dot_product_flash_attention_for_cpu` with its backward pass, which
/// compiled programs call; and `_native_multi_head_attention`, which Python's
/// TransformerEncoder calls in evaluation. Results are LibTorch's within
/// rounding, in the same memory layout. Only dropped weights differ: they come
/// from a stream of our own, which LibTorch's generator seeds.
///
/// Calls that we do not compute go on to LibTorch's own kernel: other devices
/// and dtypes, wrong arguments, tensors that are wrapped, traced or carry
/// forward derivatives, what `at::globalContext().setSDPUseFlash(false)` (in
/// Python `sdpa_kernel(SDPBackend.MATH)`) asks of LibTorch's math, and
/// everything while `default_kernel()` is `Kernel::kReference`.
///
/// Any thread may call this, also while others compute; calls that have begun
/// end as they began. Calling it again changes nothing. The environment
/// variable TORCH_ATTENTION_REPLACE_SDPA=1 calls it when this library is
/// loaded.
///
/// Example:
/// ```
/// int main() {
///   torch_attention::replace_sdpa();
///   auto model = torch::jit::load("model.pt");
/// ```
TORCH_ATTENTION_API void replace_sdpa();

/// Gives LibTorch its attention back, however often `replace_sdpa` was called.
/// A graph that was recorded before keeps its gradients.
TORCH_ATTENTION_API void restore_sdpa();

/// Returns whether our kernels compute LibTorch's attention now.
TORCH_ATTENTION_API bool is_sdpa_replaced();

/// The number of calls while LibTorch's attention was replaced.
struct SdpaCalls {
  /// computed by our kernels
  int64_t ours = 0;
  /// passed on to LibTorch's
  int64_t libtorch = 0;
};

/// Returns the calls since the program began: tells whether `replace_sdpa` has
/// anything to do in a program. A backward pass of LibTorch's operator counts
/// as a call, too; gradients of our own calls do not.
TORCH_ATTENTION_API SdpaCalls sdpa_calls();

} // namespace torch_attention
