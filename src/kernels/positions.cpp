#include <kernels/positions.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace torch_attention::kernels {

namespace {

/// (B) as (B, 1, ..., 1), which broadcasts to scores of `dim` dimensions.
torch::Tensor for_each_batch(const torch::Tensor& x, int64_t dim) {
  std::vector<int64_t> sizes(static_cast<size_t>(dim), 1);
  sizes.front() = x.size(0);
  return x.view(sizes);
}

torch::TensorOptions positions_on(torch::Device device) {
  return torch::device(device).dtype(torch::kLong);
}

/// The positions `before` those of the queries, (T, 1) or (B, ..., T, 1) of
/// `dim` dimensions. Those beyond all keys are moved up to them, where they
/// make no difference, so that nothing overflows.
torch::Tensor query_positions(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device,
    int64_t before = 0) {
  const auto options = positions_on(device);
  if (!a.query_offsets.defined()) {
    const auto first = S - T - std::min(before, S + 1);
    return torch::arange(first, first + T, options).unsqueeze(1);
  }
  constexpr auto kLeast = std::numeric_limits<int64_t>::min();
  const auto first =
      (a.query_offsets.clamp_min(kLeast + before) - before).clamp(-T - 1, S);
  return for_each_batch(first, dim) + torch::arange(T, options).unsqueeze(1);
}

} // namespace

torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device) {
  return torch::ones({T, S}, torch::device(device).dtype(torch::kBool))
      .triu_(S - T + 1);
}

bool hides_by_position(const Attention& a) {
  return a.rule.hides() || a.key_lengths.defined();
}

torch::Tensor hidden_by_position(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device) {
  if (!hides_by_position(a)) {
    return {};
  }
  // Softcap and scale hide nothing.
  const auto& [scale, softcap, causal, window] = a.rule;
  if (window == 0 && !a.key_lengths.defined() && !a.query_offsets.defined()) {
    return causal_mask(T, S, device);
  }
  const auto keys = torch::arange(S, positions_on(device));
  torch::Tensor hidden;
  const auto hide = [&](const torch::Tensor& more) {
    hidden = hidden.defined() ? hidden.bitwise_or(more) : more;
  };
  if (causal) {
    hide(keys > query_positions(a, dim, T, S, device));
  }
  if (window > 0) {
    hide(keys <= query_positions(a, dim, T, S, device, window));
  }
  if (a.key_lengths.defined()) {
    hide(keys >= for_each_batch(a.key_lengths, dim));
  }
  return hidden;
}

torch::Tensor added_by_position(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device) {
  if (!a.alibi_slopes.defined()) {
    return {};
  }
  const auto keys = torch::arange(S, positions_on(device));
  const auto ahead = query_positions(a, dim, T, S, device) - keys;
  // Not abs, which C++ has not got for the device meta.
  const auto distance = torch::maximum(ahead, -ahead);
  return distance * a.alibi_slopes.neg().view({-1, 1, 1});
}

} // namespace torch_attention::kernels
