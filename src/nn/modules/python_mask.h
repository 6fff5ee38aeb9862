#pragma once

#include <torch/types.h>

namespace torch_attention {

/// The buffer that the Python classes register: a float upper triangle of ones
/// (context_length, context_length); 1 hides.
inline torch::Tensor python_mask(int64_t context_length) {
  return torch::triu(
      torch::ones({context_length, context_length}), /*diagonal=*/1);
}

} // namespace torch_attention
