#pragma once

#include <check.h>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>

namespace torch_attention::kernels {

/// Returns whether `x` carries a forward derivative
/// (torch::autograd::forward_ad).
inline bool has_tangent(const torch::Tensor& x) {
  return x._fw_grad(/*level=*/0).defined();
}

/// Returns whether our own kernels may read the memory of `x`: not if it is on
/// another device, does not hold the tensor's numbers, or `x` carries a forward
/// derivative.
inline bool is_plain(const torch::Tensor& x) {
  return x.is_cpu() && x.layout() == torch::kStrided && !x.is_neg() &&
      !x._is_zerotensor() && !at::isTensorSubclassLike(x) && !has_tangent(x);
}

/// Returns the gradient as a dense tensor in memory. Autograd may pass a sparse
/// one, a negative view, or zeros without memory.
inline torch::Tensor materialized(const torch::Tensor& gradient) {
  if (gradient._is_zerotensor()) {
    return at::zeros(gradient.sizes(), gradient.options());
  }
  return (gradient.layout() == torch::kStrided ? gradient : gradient.to_dense())
      .resolve_neg();
}

/// Throws unless `x`, which `what` names, is undefined or on `device`, where
/// the first tensor is. `elsewhere`: another device than meta will do, too.
/// LibTorch's operators compute nothing if only one tensor is on the meta
/// device.
inline void check_device(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    torch::Device device,
    bool elsewhere = false) {
  TORCH_ATTENTION_CHECK(
      !x.defined() || x.device() == device || (elsewhere && !x.is_meta()),
      "{}: expected the {} on {}, where the first tensor is, but got {}",
      name,
      what,
      device,
      x.device());
}

/// Returns a few numbers on `device`, without waiting for it where they come
/// from the CPU: the copy must not read what the caller may change next.
inline torch::Tensor sent_to(torch::Device device, const torch::Tensor& x) {
  return device.is_cpu() || !x.is_cpu()
      ? x.to(device)
      : x.clone().to(device, /*non_blocking=*/true);
}

/// Returns the numbers of `x`, or null if it is undefined.
template <typename X>
const X* data_of(const torch::Tensor& x) {
  return x.defined() ? static_cast<const X*>(x.const_data_ptr()) : nullptr;
}

/// Returns whether a trace is being recorded: it consists of operators, which
/// our own kernels are not.
inline bool is_traced() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
}

} // namespace torch_attention::kernels
