#pragma once

#include <check.h>
#include <physical_memory.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <cstdint>

namespace torch_attention {

/// Returns the buffer that the Python classes register: a float upper triangle
/// of ones (context_length, context_length); 1 hides. Throws c10::Error if it
/// does not fit into physical memory.
inline torch::Tensor python_mask(const char* name, int64_t context_length) {
  const auto length = static_cast<double>(context_length);
  const auto bytes = length * length * sizeof(float);
  TORCH_ATTENTION_CHECK(
      bytes < static_cast<double>(physical_memory()),
      "{}: expected a context_length whose mask fits into memory, but {} "
      "asks for {:.6g} GB; register_mask(false) leaves the buffer out, and "
      "the module computes the same",
      name,
      context_length,
      bytes / 1e9);
  // In place, since two copies may not fit into memory.
  return torch::ones({context_length, context_length}).triu_(/*diagonal=*/1);
}

} // namespace torch_attention
