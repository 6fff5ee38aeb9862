#pragma once

#include <cpu/attention.h>
#include <kernels/plain.h>

#include <torch/types.h>

/// Conversion of tensors to the arguments of kernels: pointers and strides.
namespace torch_attention::kernels {

/// Calls `fn` with an element of the kernels' type for `dtype`.
template <typename Fn>
void with_element(torch::ScalarType dtype, const Fn& fn) {
  switch (dtype) {
    // NOLINTNEXTLINE(bugprone-branch-clone): of different types
    case torch::kFloat:
      return fn(float());
    case torch::kDouble:
      return fn(double());
    case torch::kBFloat16:
      return fn(cpu::BFloat16());
    case torch::kHalf:
      return fn(cpu::Float16());
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", dtype);
  }
}

/// Returns whether there are kernels for `dtype`.
inline bool has_element(torch::ScalarType dtype) {
  return dtype == torch::kFloat || dtype == torch::kDouble ||
      dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

/// Returns the dtype that the kernels compute in.
inline torch::ScalarType compute_dtype(torch::ScalarType dtype) {
  return dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
}

/// Returns x with contiguous rows, as the kernels read them.
inline torch::Tensor with_contiguous_rows(const torch::Tensor& x) {
  return x.size(-1) == 1 || x.stride(-1) == 1 ? x : x.contiguous();
}

/// Returns the strides of (B, heads, T, D) without the last.
inline cpu::Strides strides_of(const torch::Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

template <typename X>
cpu::Heads<const X> read(const torch::Tensor& x) {
  return {data_of<X>(x), strides_of(x)};
}

template <typename X>
cpu::Heads<X> write(const torch::Tensor& x) {
  return {static_cast<X*>(x.mutable_data_ptr()), strides_of(x)};
}

} // namespace torch_attention::kernels
