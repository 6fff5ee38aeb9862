#include <kernels/attention.h>

#include <kernels/block_mask.h>
#include <kernels/heads.h>
#include <kernels/plain.h>
#include <kernels/positions.h>

#include <ATen/TensorSubclassLikeUtils.h>

#include <cmath>

namespace torch_attention::kernels {

namespace {

void hide(torch::Tensor& scores, const torch::Tensor& hidden) {
  // In place, torch.vmap rejects a batched mask for unbatched scores.
  if (at::isTensorSubclassLike(scores) || at::isTensorSubclassLike(hidden)) {
    scores = scores.masked_fill(hidden, kHidden);
  } else {
    scores.masked_fill_(hidden, kHidden);
  }
}

void hide(torch::Tensor& scores, const Attention& attention) {
  const auto hidden = hidden_by_position(
      attention,
      scores.dim(),
      scores.size(-2),
      scores.size(-1),
      scores.device());
  if (hidden.defined()) {
    hide(scores, hidden);
  }
  if (attention.mask.defined()) {
    hide(scores, attention.mask);
  }
}

/// Returns the score of hidden keys for the caller's function. Not -inf, whose
/// products have NaN gradients, nor so low that sums overflow.
double hidden_for_function(torch::ScalarType dtype) {
  return dtype == torch::kHalf ? -1e4 : -1e30;
}

torch::Tensor changed_by_function(
    const torch::Tensor& scores,
    const Attention& attention) {
  const auto hidden = scores.eq(kHidden);
  const auto given =
      scores.masked_fill(hidden, hidden_for_function(scores.scalar_type()));
  return attention.score_function(given).masked_fill(hidden, kHidden);
}

/// Returns the softmax of scores (..., T, S) and `sinks`, one more score for
/// each head or row, whose weights are left out: the rest add up to less
/// than 1.
torch::Tensor softmax_with_sinks(
    const torch::Tensor& scores,
    const torch::Tensor& sinks) {
  if (!sinks.defined()) {
    return torch::softmax(scores, -1);
  }
  auto sizes = scores.sizes().vec();
  sizes.back() = 1;
  const auto column =
      (sinks.dim() == 1 ? sinks.view({-1, 1, 1}) : sinks.unsqueeze(-1))
          .expand(sizes);
  return torch::softmax(torch::cat({scores, column}, -1), -1)
      .slice(-1, 0, scores.size(-1));
}

/// Returns the softmax, with zeros for a query that sees no key.
torch::Tensor softmax_of(
    const torch::Tensor& scores,
    const Attention& attention) {
  if (!may_hide_all_keys(attention, scores.size(-2), scores.size(-1))) {
    return softmax_with_sinks(scores, attention.sinks);
  }
  // The softmax of a row of -inf is NaN, in the gradient as well: take the
  // softmax of zeros there, then zero it.
  const auto no_key = scores.eq(kHidden).all(-1, /*keepdim=*/true);
  return softmax_with_sinks(scores.masked_fill(no_key, 0), attention.sinks)
      .masked_fill(no_key, 0);
}

} // namespace

// Products (..., T, S) -> weights before dropout (..., T, S):
//
//   1. Scale, softcap, and what is hidden by position, lengths or mask.
//   2. Bias, and bias by position.
//   3. The caller's own function.
//   4. Softmax, in the dtype of the scores with bias; zeros where no key is
//      seen.
//   5. The caller's function of weights.
torch::Tensor weights_of_scores(
    torch::Tensor scores,
    int64_t head_dim,
    const Attention& attention) {
  if (attention.block_mask.defined()) {
    const auto dense =
        with_dense_mask(attention, scores.dim(), scores.device());
    return weights_of_scores(std::move(scores), head_dim, dense);
  }
  const auto& rule = attention.rule;
  if (rule.scale || rule.softcap) {
    scores = scores * rule.factor(head_dim);
    if (rule.softcap) {
      scores = torch::tanh(scores / *rule.softcap) * *rule.softcap;
    }
    hide(scores, attention);
  } else {
    hide(scores, attention);
    scores = scores / std::sqrt(static_cast<double>(head_dim));
  }
  // A bias may have more bits than the scores, and need them.
  const auto dtype = scores.scalar_type();
  if (attention.bias.defined()) {
    scores = scores + attention.bias;
    // NaN and infinities that are added to what is hidden stay hidden.
    hide(scores, attention);
  }
  const auto added = added_by_position(
      attention,
      scores.dim(),
      scores.size(-2),
      scores.size(-1),
      scores.device());
  if (added.defined()) {
    scores = scores + added;
  }
  if (attention.score_function && scores.numel() > 0) {
    scores = changed_by_function(scores, attention);
  }
  const auto weights = softmax_of(scores, attention).to(dtype);
  if (!attention.weight_function || weights.numel() == 0) {
    return weights;
  }
  return attention.weight_function(weights).masked_fill(scores.eq(kHidden), 0);
}

namespace {

/// Returns the weights before dropout.
torch::Tensor weights_of(const Attention& attention) {
  auto scores =
      product_of_groups(attention.query, attention.key.transpose(-2, -1));
  return weights_of_scores(
      std::move(scores), attention.query.size(-1), attention);
}

/// Applies Python's dropout to weights (..., H, T, S); a part of the heads gets
/// its part of the dropout mask of all heads.
torch::Tensor dropped(const torch::Tensor& weights, const Attention& a) {
  if (a.heads.all == 0 || a.dropout == 0) {
    return torch::dropout(weights, a.dropout, /*train=*/true);
  }
  auto sizes = weights.sizes().vec();
  sizes[sizes.size() - 3] = a.heads.all;
  const auto kept = torch::dropout(
      torch::ones(sizes, weights.options().requires_grad(false)),
      a.dropout,
      /*train=*/true);
  // In packed sequences `first` counts the heads of earlier ones, too.
  const auto first = a.heads.first % a.heads.all;
  return weights * kept.narrow(-3, first, weights.size(-3));
}

/// Adds the products of weights (..., T, S) and the values (..., S, E) that are
/// `unusual` to `output` (..., T, E), only for the queries that see them.
torch::Tensor add_unusual_values(
    torch::Tensor output,
    const torch::Tensor& weights,
    const torch::Tensor& value,
    const torch::Tensor& unusual) {
  const auto keys =
      unusual.any(-1).reshape({-1, unusual.size(-2)}).any(0).nonzero();
  for (int64_t i = 0; i < keys.size(0); ++i) {
    const auto key = keys[i].item<int64_t>();
    const auto weight = weights.narrow(-1, key, 1); // (..., T, 1)
    // The values of the key where a query sees them and they are unusual.
    const auto added = unusual.narrow(-2, key, 1).logical_and(weight.ne(0));
    output = output +
        weight *
            value.narrow(-2, key, 1)
                .expand_as(added)
                .masked_fill(added.logical_not(), 0);
  }
  return output;
}

torch::Tensor output_of(const torch::Tensor& weights, const Attention& a) {
  if (!a.calls_back()) {
    return product_of_groups(weights, a.value);
  }
  // No other kernel computes callbacks, so values that are not finite must not
  // be multiplied by 0. A query with NaN has NaN weights in any case.
  const auto value = share_heads(a.value, a.query);
  const auto unusual = value.isfinite().logical_not();
  if (!at::isTensorSubclassLike(unusual) && !unusual.is_meta() &&
      !is_traced()) {
    return add_unusual_values(
        torch::matmul(weights, value.masked_fill(unusual, 0)),
        weights,
        value,
        unusual);
  }
  const auto seen = weights.abs().gt(0).any(/*dim=*/-2).unsqueeze(-1);
  return torch::matmul(weights, value.masked_fill(seen.logical_not(), 0));
}

} // namespace

std::tuple<torch::Tensor, torch::Tensor> reference(const Attention& attention) {
  const auto weights = dropped(weights_of(attention), attention);
  return {output_of(weights, attention), weights};
}

torch::Tensor reference(const Attention& attention, const torch::Tensor& kept) {
  const auto weights = weights_of(attention);
  return output_of(kept.defined() ? weights * kept : weights, attention);
}

} // namespace torch_attention::kernels
