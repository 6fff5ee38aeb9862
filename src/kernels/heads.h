#pragma once

#include <torch/types.h>

namespace torch_attention::kernels {

/// Repeats the key or value heads, one for each query head: (..., G, S, D) ->
/// (..., H, S, D) for a query (..., H, T, D).
inline torch::Tensor share_heads(
    const torch::Tensor& x,
    const torch::Tensor& query) {
  if (x.dim() < 3 || x.size(-3) == query.size(-3)) {
    return x;
  }
  return x.repeat_interleave(query.size(-3) / x.size(-3), -3);
}

/// Returns the matrix products of `rows` (..., H, T, N) with the matrices of
/// their groups, (..., G, N, M): (..., H, T, M). The matrices are not repeated.
inline torch::Tensor product_of_groups(
    const torch::Tensor& rows,
    const torch::Tensor& matrices) {
  if (rows.dim() < 3 || rows.size(-3) == matrices.size(-3)) {
    return torch::matmul(rows, matrices);
  }
  const auto H = rows.size(-3);
  const auto T = rows.size(-2);
  const auto G = matrices.size(-3);
  return torch::matmul(rows.unflatten(-3, {G, H / G}).flatten(-3, -2), matrices)
      .unflatten(-2, {H / G, T})
      .flatten(-4, -3);
}

/// Splits the features into heads: (B, T, H * D) -> (B, H, T, D).
inline torch::Tensor split_heads(const torch::Tensor& x, int64_t num_heads) {
  // Not -1 as the last size, which is undetermined for empty tensors.
  const auto head_dim = x.size(2) / num_heads;
  return x.view({x.size(0), x.size(1), num_heads, head_dim}).transpose(1, 2);
}

/// Joins the heads: (B, H, T, D) -> (B, T, H * D).
inline torch::Tensor combine_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).contiguous().view(
      {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

/// Reshapes a tensor to four dimensions: (..., T, D) -> (B, H, T, D). Adds
/// dimensions of size 1, or flattens the leading ones.
inline torch::Tensor to_rank_4(const torch::Tensor& x) {
  if (x.dim() == 2) {
    return x.unsqueeze(0).unsqueeze(0);
  }
  if (x.dim() == 3) {
    return x.unsqueeze(1);
  }
  return x.dim() > 4 ? x.flatten(0, x.dim() - 4) : x;
}

/// Returns the output (B, H, T, D) in the shape of `query` before `to_rank_4`.
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

/// Reshapes a mask or bias, which broadcasts to the scores (..., T, S) of
/// `query`
/// (..., T, D), like `to_rank_4` reshapes the scores.
inline torch::Tensor scores_to_rank_4(
    const torch::Tensor& mask,
    const torch::Tensor& query) {
  auto result = mask;
  if (query.dim() > 4) {
    auto sizes = query.sizes().vec();
    sizes.back() = mask.dim() == 0 ? 1 : mask.size(-1);
    result = mask.expand(sizes);
  }
  while (result.dim() < query.dim()) {
    result = result.unsqueeze(0);
  }
  return to_rank_4(result);
}

} // namespace torch_attention::kernels
