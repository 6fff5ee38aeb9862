#pragma once

#include <torch/torch.h>

/// Inputs and helpers that several documents share with the book they follow.
namespace torch_attention::testing {

/// Returns "Your journey starts with one step": a token in each row, (6, 3).
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

/// Returns the same text twice, (2, 6, 3).
inline torch::Tensor book_batch() {
  return torch::stack({book_inputs(), book_inputs()}, 0);
}

/// Returns the same expected values for both texts of the batch.
inline torch::Tensor twice(const torch::Tensor& expected) {
  return torch::stack({expected, expected}, 0);
}

/// Returns whether this LibTorch's dropout draws each element from torch's own
/// generator, as public builds do since PyTorch issue 132395.
inline bool dropout_is_drawn_by_torch() {
  torch::manual_seed(123);
  const auto dropped = torch::dropout(torch::ones({6, 6}), 0.5, true);
  torch::manual_seed(123);
  const auto drawn = torch::rand({6, 6}, torch::kDouble) < 0.5;
  return torch::equal(dropped.ne(0), drawn);
}

} // namespace torch_attention::testing
