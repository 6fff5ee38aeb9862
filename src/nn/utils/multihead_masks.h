#pragma once

#include <torch/types.h>

#include <cstdint>

/// The masks of a `torch::nn::MultiheadAttention`, with the meaning that they
/// have in Python's `nn.MultiheadAttention`: a bool mask hides where it is
/// true. LibTorch's C++ class adds a bool `attn_mask` as 1.
namespace torch_attention::detail {

/// The sizes of the scores (B, H, T, S) and their device.
struct MultiheadScores {
  int64_t B;
  int64_t H;
  int64_t T;
  int64_t S;
  torch::Device device;
};

/// A bool mask and a bias that broadcast to the scores, each undefined if there
/// is none.
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

/// Extends the masks by `count` keys that all queries see, without a bias.
void see_more_keys(MultiheadMasks& masks, int64_t count);

} // namespace torch_attention::detail
