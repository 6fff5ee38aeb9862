#include <device/definition.h>

#include <support/test.h>

#include <cmath>
#include <limits>

namespace torch_attention::testing {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns (G, S, D) as (H, S, D): consecutive query heads share one.
torch::Tensor for_all_heads(const torch::Tensor& x, int64_t H) {
  const auto heads = x.transpose(0, 1);
  return heads.repeat_interleave(H / heads.size(0), 0);
}

/// Returns gradients (H, S, D) as those of (S, G, D).
torch::Tensor sum_of_groups(const torch::Tensor& x, int64_t G) {
  return x.view({G, x.size(0) / G, x.size(1), x.size(2)})
      .sum(1)
      .transpose(0, 1);
}

/// Returns bool (T, S), true where a key is hidden.
torch::Tensor hidden_keys(const Window& window, int64_t T, int64_t S) {
  const auto position =
      torch::arange(T, torch::kLong).unsqueeze(1) + window.offset;
  const auto key = torch::arange(S, torch::kLong).unsqueeze(0);
  auto hidden = torch::zeros({T, S}, torch::kBool);
  if (window.left) {
    hidden = hidden.bitwise_or(key < position - *window.left);
  }
  if (window.right) {
    hidden = hidden.bitwise_or(key > position + *window.right);
  }
  return hidden;
}

/// Returns the scores (H, T, S), -inf where a key is hidden.
torch::Tensor scores_of(const DefinedAttention& a) {
  const auto H = a.query.size(1);
  auto scores =
      torch::matmul(
          a.query.transpose(0, 1), for_all_heads(a.key, H).transpose(1, 2)) *
      a.scale;
  if (a.bias.defined()) {
    scores = scores + a.bias;
  }
  return scores.masked_fill(
      hidden_keys(a.window, a.query.size(0), a.key.size(0)), -kInfinity);
}

/// A step of splitmix64.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

} // namespace

DefinedOutput attention_by_definition(const DefinedAttention& a) {
  const auto scores = scores_of(a);
  auto logsumexp = torch::logsumexp(scores, -1);
  logsumexp = logsumexp.masked_fill(logsumexp == -kInfinity, a.empty_logsumexp);
  auto weights = torch::exp(scores - logsumexp.unsqueeze(-1));
  if (a.kept.defined()) {
    weights = weights * a.kept;
  }
  const auto output =
      torch::matmul(weights, for_all_heads(a.value, a.query.size(1)));
  return {output.transpose(0, 1), logsumexp};
}

DefinedGradients gradients_by_definition(
    const DefinedAttention& a,
    const torch::Tensor& grad_output,
    const DefinedOutput& given) {
  const auto H = a.query.size(1);
  const auto G = a.key.size(1);
  const auto query = a.query.transpose(0, 1);
  const auto key = for_all_heads(a.key, H);
  const auto value = for_all_heads(a.value, H);
  const auto grad = grad_output.transpose(0, 1);
  const auto weights = torch::exp(scores_of(a) - given.logsumexp.unsqueeze(-1));
  auto grad_weights = torch::matmul(grad, value.transpose(1, 2));
  auto dropped = weights;
  if (a.kept.defined()) {
    grad_weights = grad_weights * a.kept;
    dropped = weights * a.kept;
  }
  const auto delta = (grad * given.output.transpose(0, 1)).sum(-1, true);
  const auto grad_scores = weights * (grad_weights - delta);
  return {
      (torch::matmul(grad_scores, key) * a.scale).transpose(0, 1),
      sum_of_groups(
          torch::matmul(grad_scores.transpose(1, 2), query) * a.scale, G),
      sum_of_groups(torch::matmul(dropped.transpose(1, 2), grad), G),
      grad_scores};
}

int64_t draw_seed() {
  return torch::randint(int64_t{1} << 53, {1}, torch::kLong).item<int64_t>();
}

torch::Tensor kept_by_dropout(
    const DropoutState& dropout,
    int64_t b,
    torch::IntArrayRef sizes) {
  if (dropout.probability == 0) {
    return {};
  }
  auto kept = torch::empty(sizes, torch::kDouble);
  auto* factor = kept.mutable_data_ptr<double>();
  const auto seed =
      mix(static_cast<uint64_t>(dropout.seed) + mix(static_cast<uint64_t>(b)));
  for (int64_t i = 0; i < kept.numel(); ++i) {
    const auto drawn =
        std::ldexp(static_cast<double>(mix(seed + mix(i)) >> 11U), -53);
    factor[i] =
        drawn < dropout.probability ? 0.0 : 1.0 / (1.0 - dropout.probability);
  }
  return kept;
}

} // namespace torch_attention::testing
