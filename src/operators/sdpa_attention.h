#pragma once

#include <kernels/attention.h>
#include <kernels/tiled.h>

#include <optional>

/// LibTorch's arguments of attention as our kernels take them.
namespace torch_attention::operators {

/// The arguments that LibTorch's attentions share. A bool mask is true where
/// keys are seen, another one is added; causal hides what lies above the
/// diagonal through the first query and the first key.
struct SdpaArguments {
  const torch::Tensor& query;
  const torch::Tensor& key;
  const torch::Tensor& value;
  const std::optional<torch::Tensor>& mask;
  double dropout;
  bool causal;
  std::optional<double> scale;

  /// Autograd passes an undefined one for none.
  bool has_mask() const {
    return mask && mask->defined();
  }
};

/// Returns whether our kernels compute numbers of this dtype.
bool is_computed(torch::ScalarType dtype);

/// Returns whether our kernels may read the memory of `x`.
bool has_memory(const torch::Tensor& x);

/// Checks that the tensors are on one device. LibTorch calls its kernels for
/// the device meta if one is on it, and returns memory that was not written.
void check_devices(const SdpaArguments& x);

/// Returns whether all tensors lie in the CPU's memory, in one dtype that our
/// kernels compute; a mask may be bool.
bool is_readable(const SdpaArguments& x);

/// Returns the attention that `scaled_dot_product_attention` is asked for, of
/// what `is_readable`; nothing if we do not compute it, be it wrong or unusual.
/// Heads that share keys get a batch of size 1 if there is none.
std::optional<kernels::Attention> checked_attention(
    const SdpaArguments& x,
    bool shares_heads);

/// Returns the attention that LibTorch's flash operator is asked for, of what
/// `is_readable`; nothing if we do not compute it.
std::optional<kernels::Attention> attention_of_flash(const SdpaArguments& x);

/// Returns how this LibTorch's flash kernel leaves its output in memory.
kernels::OutputLayout layout_of_flash();

} // namespace torch_attention::operators
