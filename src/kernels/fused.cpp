#include <kernels/attention.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <limits>

namespace torch_attention::kernels {

namespace {

/// (..., T, S) -> (N, H, T, S), the only rank that LibTorch's fused kernels
/// take. A dimension of size 1 is added, or the leading ones are joined.
torch::Tensor to_rank_4(const torch::Tensor& x) {
  if (x.dim() == 2) {
    return x.unsqueeze(0).unsqueeze(0);
  }
  if (x.dim() == 3) {
    return x.unsqueeze(1);
  }
  return x.dim() > 4 ? x.flatten(0, x.dim() - 4) : x;
}

/// LibTorch's `attn_mask` for what `is_causal` does not say: undefined, bool
/// (true attends) or additive. Broadcasts to (..., T, S).
torch::Tensor explicit_mask(const Attention& a, bool is_causal) {
  const auto T = a.query.size(-2);
  const auto S = a.key.size(-2);
  torch::Tensor hidden = a.mask;
  // A single query at the end sees all keys.
  if (a.causal && !is_causal && T > 1) {
    const auto later = causal_mask(T, S, a.query.device());
    hidden = hidden.defined() ? hidden.logical_or(later) : later;
  }
  if (!a.bias.defined()) {
    return hidden.defined() ? hidden.logical_not() : hidden;
  }
  const auto bias = a.bias.to(a.query.scalar_type());
  return hidden.defined()
      ? torch::where(hidden, -std::numeric_limits<double>::infinity(), bias)
      : bias;
}

/// `mask` with the rank of the scores, so that `to_rank_4` does to both the
/// same.
torch::Tensor with_rank_of_scores(
    const torch::Tensor& mask,
    const torch::Tensor& query) {
  if (query.dim() > 4) {
    auto sizes = query.sizes().vec();
    sizes.back() = mask.size(-1);
    return mask.expand(sizes);
  }
  auto result = mask;
  while (result.dim() < query.dim()) {
    result = result.unsqueeze(0);
  }
  return result;
}

} // namespace

torch::Tensor fused(const Attention& attention) {
  auto query = attention.query;
  auto scale = attention.scale;
  // LibTorch scales after hiding keys by -inf, which a factor <= 0 would turn.
  if (scale && !(*scale > 0)) {
    query = query * *scale;
    scale = 1.0;
  }
  // LibTorch aligns its causal mask with the first key, we with the last: the
  // same only for as many keys as queries, and it takes no mask beside it.
  const bool is_causal = attention.causal && !attention.mask.defined() &&
      !attention.bias.defined() && query.size(-2) == attention.key.size(-2);
  auto mask = explicit_mask(attention, is_causal);
  std::optional<torch::Tensor> attn_mask;
  if (mask.defined()) {
    attn_mask = to_rank_4(with_rank_of_scores(mask, query));
  }
  const auto output = at::scaled_dot_product_attention(
      to_rank_4(query),
      to_rank_4(attention.key),
      to_rank_4(attention.value),
      attn_mask,
      attention.dropout,
      is_causal,
      scale);
  auto sizes = query.sizes().vec();
  sizes.back() = attention.value.size(-1);
  return query.dim() == 4 ? output : output.reshape(sizes);
}

} // namespace torch_attention::kernels
