#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/types.h>

namespace torch_attention::kernels {

/// Whether our own kernels may read the memory of `x`: not if it is on another
/// device, stands for something else, or carries a forward derivative.
inline bool is_plain(const torch::Tensor& x) {
  return x.is_cpu() && x.layout() == torch::kStrided && !x.is_neg() &&
      !at::isTensorSubclassLike(x) && !x._fw_grad(/*level=*/0).defined();
}

/// The numbers of `x`, or null if it is undefined.
template <typename X>
const X* data_of(const torch::Tensor& x) {
  return x.defined() ? static_cast<const X*>(x.const_data_ptr()) : nullptr;
}

/// A trace records operators, which our own kernels are not.
inline bool is_traced() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
}

} // namespace torch_attention::kernels
