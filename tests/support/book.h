#pragma once

#include <torch/torch.h>

/// What several documents share with the book that they follow.
namespace torch_attention::testing {

/// "Your journey starts with one step": a token a row, (6, 3).
inline torch::Tensor book_inputs() {
  return torch::tensor(
      {{0.43, 0.15, 0.89},
       {0.55, 0.87, 0.66},
       {0.57, 0.85, 0.64},
       {0.22, 0.58, 0.33},
       {0.77, 0.25, 0.10},
       {0.05, 0.80, 0.55}},
      torch::kFloat);
}

/// The same text twice, (2, 6, 3).
inline torch::Tensor book_batch() {
  return torch::stack({book_inputs(), book_inputs()}, 0);
}

/// The same expected values for both texts of the batch.
inline torch::Tensor twice(const torch::Tensor& expected) {
  return torch::stack({expected, expected}, 0);
}

} // namespace torch_attention::testing
