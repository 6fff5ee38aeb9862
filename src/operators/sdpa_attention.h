#pragma once

#include <kernels/attention.h>
#include <kernels/tiled.h>

#include <optional>

/// Converts the arguments of LibTorch's attention for our kernels.
namespace torch_attention::operators {

/// The arguments that LibTorch's attention operators have in common. A bool
/// mask is true for visible keys, any other mask is added to the scores.
/// `causal` hides what is above the diagonal through the first query and the
/// first key.
struct SdpaArguments {
  const torch::Tensor& query;
  const torch::Tensor& key;
  const torch::Tensor& value;
  const std::optional<torch::Tensor>& mask;
  double dropout;
  bool causal;
  std::optional<double> scale;

  /// Autograd passes an undefined tensor for no mask.
  bool has_mask() const {
    return mask && mask->defined();
  }
};

/// Returns whether our kernels support a dtype.
bool is_computed(torch::ScalarType dtype);

/// Returns whether our kernels may read the memory of `x`.
bool has_memory(const torch::Tensor& x);

/// Checks that the tensors are on one device. If one is on the device meta,
/// LibTorch would call its kernels for that device and return uninitialised
/// memory.
void check_devices(const SdpaArguments& x);

/// Returns whether all tensors are in the CPU's memory and have one dtype that
/// our kernels support; a mask may be bool.
bool is_readable(const SdpaArguments& x);

/// Returns the attention that a call of `scaled_dot_product_attention`
/// describes, or nothing if our kernels do not compute it, since it is wrong or
/// unusual. `is_readable` must be true for the call. With `shares_heads`,
/// tensors of three dimensions get a batch of size 1.
std::optional<kernels::Attention> checked_attention(
    const SdpaArguments& x,
    bool shares_heads);

/// Returns the attention that a call of LibTorch's flash operator describes, or
/// nothing if our kernels do not compute it. `is_readable` must be true for it.
std::optional<kernels::Attention> attention_of_flash(const SdpaArguments& x);

/// Returns the memory layout of the output of this LibTorch's flash kernel.
kernels::OutputLayout layout_of_flash();

} // namespace torch_attention::operators
