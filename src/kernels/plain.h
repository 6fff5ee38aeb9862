#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/types.h>

namespace torch_attention::kernels {

/// Returns whether `x` carries a forward derivative
/// (torch::autograd::forward_ad).
inline bool has_tangent(const torch::Tensor& x) {
  return x._fw_grad(/*level=*/0).defined();
}

/// Returns whether our own kernels may read the memory of `x`: not if it is on
/// another device, stands for something else, or carries a forward derivative.
inline bool is_plain(const torch::Tensor& x) {
  return x.is_cpu() && x.layout() == torch::kStrided && !x.is_neg() &&
      !x._is_zerotensor() && !at::isTensorSubclassLike(x) && !has_tangent(x);
}

/// Returns a gradient with memory of its own numbers. Autograd may hand on a
/// sparse one, the negative of what memory holds, or zeros without memory.
inline torch::Tensor materialized(const torch::Tensor& gradient) {
  if (gradient._is_zerotensor()) {
    return at::zeros(gradient.sizes(), gradient.options());
  }
  return (gradient.layout() == torch::kStrided ? gradient : gradient.to_dense())
      .resolve_neg();
}

/// Checks that `x`, which `what` names and may be undefined, is on `device`, as
/// the first tensor is. `elsewhere`: it may be on another one if it has numbers
/// there. LibTorch's operators take their kernels for the device meta, which
/// compute nothing, if only one tensor is on it.
inline void check_device(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    torch::Device device,
    bool elsewhere = false) {
  TORCH_CHECK(
      !x.defined() || x.device() == device || (elsewhere && !x.is_meta()),
      name,
      ": expected the ",
      what,
      " on ",
      device,
      ", where the first tensor is, but got ",
      x.device());
}

/// Returns the numbers of `x`, or null if it is undefined.
template <typename X>
const X* data_of(const torch::Tensor& x) {
  return x.defined() ? static_cast<const X*>(x.const_data_ptr()) : nullptr;
}

/// Returns whether a trace is being made: it records operators, which our own
/// kernels are not.
inline bool is_traced() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
}

} // namespace torch_attention::kernels
