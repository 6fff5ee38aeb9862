#include <kernels/libtorch/positions_as_features.h>

#include <kernels/backward_node.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

namespace torch_attention::kernels {

namespace {

/// Kernels want head_dim to be a multiple of this, and at most so large.
constexpr int64_t kFeatures = 8;
constexpr int64_t kLargestDim = 256;
/// Sums of slopes times positions up to half of this keep the differences of
/// neighbours in float32.
constexpr int64_t kMostKeys = int64_t{1} << 15;
/// float16 has the quotient of a slope up to 600 and such a scale.
constexpr double kLeastScale = 1e-2;

/// Returns (H, 8): the slope as three numbers of `dtype`, each twice.
torch::Tensor slope_features(const torch::Tensor& slopes, torch::Dtype dtype) {
  const auto first = slopes.to(dtype);
  const auto after_first = slopes - first;
  const auto second = after_first.to(dtype);
  const auto third = (after_first - second).to(dtype);
  const auto none = at::zeros_like(first);
  return at::stack(
      {first, first, second, second, third, third, none, none}, -1);
}

/// Returns (S, 8): the position, from the middle on, as a multiple of 128 and
/// the rest, three times.
torch::Tensor position_features(
    int64_t S,
    const torch::TensorOptions& options) {
  constexpr int64_t kStep = 128;
  const auto position = at::arange(S, options.dtype(torch::kLong)) - S / 2;
  const auto rest = position.bitwise_and(kStep - 1);
  const auto whole = position - rest;
  const auto none = at::zeros_like(rest);
  return at::stack({whole, rest, whole, rest, whole, rest, none, none}, -1)
      .to(options);
}

} // namespace

bool may_have_positions_as_features(const Attention& a) {
  const auto D = a.query.size(-1);
  return a.alibi_slopes.defined() && !a.query.is_cpu() && a.rule.causal &&
      !a.bias.defined() && !a.sinks.defined() &&
      !is_recorded({&a.alibi_slopes}) && D % kFeatures == 0 &&
      D == a.value.size(-1) && D + kFeatures <= kLargestDim &&
      a.key.size(-2) <= kMostKeys && a.rule.factor(D) >= kLeastScale;
}

Attention with_positions_as_features(const Attention& a) {
  auto changed = a;
  changed.alibi_slopes = torch::Tensor();
  const auto scale = a.rule.factor(a.query.size(-1));
  changed.rule.scale = scale;
  const auto dtype = a.query.scalar_type();
  const auto with = [](const torch::Tensor& x, const torch::Tensor& features) {
    return at::cat(
        {x, features.expand({x.size(0), x.size(1), x.size(2), kFeatures})}, -1);
  };
  // (H, 1, 8) and (S, 8)
  changed.query =
      with(a.query, slope_features(a.alibi_slopes / scale, dtype).unsqueeze(1));
  changed.key = with(
      a.key,
      position_features(a.key.size(2), a.key.options().requires_grad(false)));
  changed.value = at::constant_pad_nd(a.value, {0, kFeatures});
  return changed;
}

} // namespace torch_attention::kernels
