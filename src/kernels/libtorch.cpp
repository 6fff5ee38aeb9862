#include <kernels/attention.h>

#include <kernels/heads.h>
#include <kernels/positions.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <limits>

namespace torch_attention::kernels {

namespace {

/// LibTorch's `attn_mask` for what `is_causal` does not say: undefined, bool
/// (true attends) or additive. Broadcasts to (..., T, S).
torch::Tensor explicit_mask(const Attention& a, bool is_causal) {
  torch::Tensor hidden = a.mask;
  if (!is_causal) {
    const auto by_position = hidden_by_position(
        a, a.query.dim(), a.query.size(-2), a.key.size(-2), a.query.device());
    if (by_position.defined()) {
      hidden = hidden.defined() ? hidden.logical_or(by_position) : by_position;
    }
  }
  auto bias = alibi_bias(
      a, a.query.dim(), a.query.size(-2), a.key.size(-2), a.query.device());
  if (a.bias.defined()) {
    bias = bias.defined() ? bias + a.bias : a.bias;
  }
  if (!bias.defined()) {
    return hidden.defined() ? hidden.logical_not() : hidden;
  }
  bias = bias.to(a.query.scalar_type());
  return hidden.defined()
      ? torch::where(hidden, -std::numeric_limits<double>::infinity(), bias)
      : bias;
}

/// Without what hides nothing: a single query at the end sees all keys.
Attention simplified(const Attention& attention) {
  auto a = attention;
  if (a.query.size(-2) == 1 && !a.query_offsets.defined()) {
    a.causal = false;
  }
  return a;
}

} // namespace

bool is_libtorch(const Attention& attention) {
  // It caps no scores.
  return attention.softcap == 0;
}

torch::Tensor libtorch(const Attention& attention) {
  const auto a = simplified(attention);
  auto query = a.query;
  auto scale = a.scale;
  // LibTorch scales after hiding keys by -inf, which a factor <= 0 would turn.
  if (scale && !(*scale > 0)) {
    query = query * *scale;
    scale = 1.0;
  }
  // LibTorch aligns its causal mask with the first key, we with the last: the
  // same only for as many keys as queries, and it takes no mask beside it.
  const bool is_causal = a.causal && a.window == 0 && !a.mask.defined() &&
      !a.bias.defined() && !a.alibi_slopes.defined() &&
      !a.key_lengths.defined() && !a.query_offsets.defined() &&
      query.size(-2) == a.key.size(-2);
  const auto mask = explicit_mask(a, is_causal);
  std::optional<torch::Tensor> attn_mask;
  if (mask.defined()) {
    attn_mask = scores_to_rank_4(mask, query);
  }
  const auto output = at::scaled_dot_product_attention(
      to_rank_4(query),
      to_rank_4(share_heads(a.key, query)),
      to_rank_4(share_heads(a.value, query)),
      attn_mask,
      a.dropout,
      is_causal,
      scale);
  return from_rank_4(output, query);
}

} // namespace torch_attention::kernels
