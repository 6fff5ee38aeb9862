#pragma once

#include <ATen/SDPBackend.h>

/// `at::scaled_dot_product_attention` on the emulated device, which chooses
/// kernels as on CUDA's.
namespace torch_attention::testing {

/// Sets the kernel that `at::_fused_sdp_choice` prefers on the device, and
/// returns the former one, initially flash_attention. What this kernel does not
/// compute is left to efficient_attention, then to math.
at::SDPBackend choose(at::SDPBackend preferred);

} // namespace torch_attention::testing
