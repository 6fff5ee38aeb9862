#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch_attention {

/// The bytes of a large page.
constexpr int64_t kLargePageBytes = int64_t{1} << 21;

/// Returns the number of bytes from an address to the next large page.
int64_t bytes_to_large_page(const void* data);

/// Asks Linux for pages of 2 MB for the memory of a tensor on the CPU that was
/// just allocated, as far as it covers such pages. Does nothing for other
/// tensors, and for memory that was written before: only new pages are large.
///
/// Large tensors of keys, values and weights are read at up to twice the rate:
/// on pages of 4 kB, the processor waits for their addresses.
///
/// Example:
/// ```
/// auto made = at::empty_like(weight, at::kBFloat16);
/// ask_for_large_pages(made);
/// made.copy_(weight);
/// ```
void ask_for_large_pages(const at::Tensor& x);

/// Returns an uninitialised tensor on such pages.
at::Tensor empty_on_large_pages(
    at::IntArrayRef sizes,
    const at::TensorOptions& options = {});

} // namespace torch_attention
