#pragma once

#include <torch/types.h>

#include <cstdint>

/// The masks of a `torch::nn::MultiheadAttention`, read as Python's
/// `nn.MultiheadAttention` reads them: true hides in a bool one, which
/// LibTorch's class would add as 1 where it is an `attn_mask`.
namespace torch_attention::detail {

/// The scores (B, H, T, S) and where they are.
struct MultiheadScores {
  int64_t B;
  int64_t H;
  int64_t T;
  int64_t S;
  torch::Device device;
};

/// A bool mask that hides and a bias that is added, each undefined if there is
/// none; they broadcast to the scores.
struct MultiheadMasks {
  torch::Tensor hidden;
  torch::Tensor bias;
};

/// Reads `key_padding_mask` (B, S) and `attn_mask` (T, S) or (B * H, T, S),
/// each bool or floating-point or undefined. Throws c10::Error for others.
MultiheadMasks read_masks(
    const torch::Tensor& key_padding_mask,
    const torch::Tensor& attn_mask,
    const MultiheadScores& scores);

/// Lets all queries see `count` keys after the S ones, without a bias.
void see_more_keys(MultiheadMasks& masks, int64_t count);

} // namespace torch_attention::detail
