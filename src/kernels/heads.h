#pragma once

#include <torch/types.h>

namespace torch_attention::kernels {

/// Gives each query head its key or value head: (..., G, S, D) -> (..., H, S,
/// D) for a query (..., H, T, D).
inline torch::Tensor share_heads(
    const torch::Tensor& x,
    const torch::Tensor& query) {
  if (x.dim() < 3 || x.size(-3) == query.size(-3)) {
    return x;
  }
  return x.repeat_interleave(query.size(-3) / x.size(-3), -3);
}

/// (B, T, H * D) -> (B, H, T, D)
inline torch::Tensor split_heads(const torch::Tensor& x, int64_t num_heads) {
  // The last size is given, not -1, which empty tensors leave undetermined.
  const auto head_dim = x.size(2) / num_heads;
  return x.view({x.size(0), x.size(1), num_heads, head_dim}).transpose(1, 2);
}

/// (B, H, T, D) -> (B, T, H * D)
inline torch::Tensor combine_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).contiguous().view(
      {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

/// (..., T, D) -> (B, H, T, D). A dimension of size 1 is added, or the leading
/// ones are joined.
inline torch::Tensor to_rank_4(const torch::Tensor& x) {
  if (x.dim() == 2) {
    return x.unsqueeze(0).unsqueeze(0);
  }
  if (x.dim() == 3) {
    return x.unsqueeze(1);
  }
  return x.dim() > 4 ? x.flatten(0, x.dim() - 4) : x;
}

/// The output (B, H, T, D) for `query` as it was before `to_rank_4`.
inline torch::Tensor from_rank_4(
    const torch::Tensor& output,
    const torch::Tensor& query) {
  if (query.dim() == 4) {
    return output;
  }
  auto sizes = query.sizes().vec();
  sizes.back() = output.size(-1);
  return output.reshape(sizes);
}

/// What broadcasts to the scores (..., T, S) of `query` (..., T, D), as
/// `to_rank_4` makes the scores.
inline torch::Tensor scores_to_rank_4(
    const torch::Tensor& mask,
    const torch::Tensor& query) {
  auto result = mask;
  if (query.dim() > 4) {
    auto sizes = query.sizes().vec();
    sizes.back() = mask.size(-1);
    result = mask.expand(sizes);
  }
  while (result.dim() < query.dim()) {
    result = result.unsqueeze(0);
  }
  return to_rank_4(result);
}

} // namespace torch_attention::kernels
