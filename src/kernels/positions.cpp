#include <kernels/positions.h>

#include <cpu/visibility.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace torch_attention::kernels {

namespace {

/// Returns (B) as (B, 1, ..., 1), which broadcasts to scores of `dim`
/// dimensions.
torch::Tensor for_each_batch(const torch::Tensor& x, int64_t dim) {
  std::vector<int64_t> sizes(static_cast<size_t>(dim), 1);
  sizes.front() = x.size(0);
  return x.view(sizes);
}

torch::TensorOptions positions_on(torch::Device device) {
  return torch::device(device).dtype(torch::kLong);
}

/// Returns the positions of the queries minus `before`: (T, 1) or (B, ..., T,
/// 1) of `dim` dimensions. Positions beyond all keys are clamped next to them,
/// where they make no difference, so that nothing overflows.
torch::Tensor query_positions(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device,
    int64_t before = 0) {
  const auto options = positions_on(device);
  if (!a.query_offsets.defined()) {
    const auto first = S - T - std::clamp(before, -T, S + 1);
    return torch::arange(first, first + T, options).unsqueeze(1);
  }
  using Limits = std::numeric_limits<int64_t>;
  const auto offsets = before >= 0
      ? a.query_offsets.clamp_min(Limits::min() + before)
      : a.query_offsets.clamp_max(Limits::max() + before);
  const auto first = (offsets - before).clamp(-T - 1, S);
  return for_each_batch(first, dim) + torch::arange(T, options).unsqueeze(1);
}

/// Returns the positions that distances are counted from. Beyond the keys they
/// change all scores of a query alike, which matters only with a sink.
torch::Tensor distant_positions(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device) {
  if (!a.sinks.defined() || !a.query_offsets.defined()) {
    return query_positions(a, dim, T, S, device);
  }
  constexpr auto kFar = int64_t{1} << 62;
  return for_each_batch(a.query_offsets.clamp(-kFar, kFar), dim) +
      torch::arange(T, positions_on(device)).unsqueeze(1);
}

/// Returns floor(x / size).
torch::Tensor floor_div(const torch::Tensor& x, int64_t size) {
  return torch::div(x, size, "floor");
}

/// Returns the index of each query's chunk, in the shape of `query_positions`.
/// Adds to the position within its chunk only, so that nothing overflows.
torch::Tensor query_chunks(
    const Attention& a,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device) {
  const auto chunk = *a.rule.chunk;
  if (!a.query_offsets.defined()) {
    return floor_div(query_positions(a, dim, T, S, device), chunk);
  }
  const auto offsets = for_each_batch(a.query_offsets, dim);
  const auto first = floor_div(offsets, chunk);
  const auto until_next = offsets - first * chunk - chunk;
  const auto steps = torch::arange(T, positions_on(device)).unsqueeze(1);
  return first + 1 + floor_div(until_next + steps, chunk);
}

} // namespace

torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device) {
  return torch::ones({T, S}, torch::device(device).dtype(torch::kBool))
      .triu_(S - T + 1);
}

bool may_hide_all_keys(const Attention& a, int64_t T, int64_t S) {
  return a.score_function || a.mask.defined() || a.bias.defined() ||
      a.key_lengths.defined() || a.query_offsets.defined() ||
      (a.rule.hides_keys() && T > S);
}

bool hides_by_position(const Attention& a) {
  return a.rule.hides_keys() || a.key_lengths.defined();
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
  const auto& rule = a.rule;
  const bool only_causal = rule.causal && !rule.window && !rule.chunk;
  if (only_causal && !a.key_lengths.defined() && !a.query_offsets.defined()) {
    return causal_mask(T, S, device);
  }
  const auto keys = torch::arange(S, positions_on(device));
  torch::Tensor hidden;
  const auto hide = [&](const torch::Tensor& more) {
    hidden = hidden.defined() ? hidden.bitwise_or(more) : more;
  };
  if (rule.causal) {
    hide(keys > query_positions(a, dim, T, S, device));
  }
  if (rule.window) {
    hide(keys <= query_positions(a, dim, T, S, device, *rule.window));
  }
  if (rule.window_after) {
    hide(keys > query_positions(a, dim, T, S, device, -*rule.window_after));
  }
  if (rule.chunk) {
    hide(floor_div(keys, *rule.chunk) != query_chunks(a, dim, T, S, device));
  }
  if (a.key_lengths.defined()) {
    hide(keys >= for_each_batch(a.key_lengths, dim));
  }
  return hidden;
}

torch::Tensor queries_without_key(
    const Attention& a,
    const torch::Tensor& hidden) {
  const auto T = a.query.size(-2);
  const auto S = a.key.size(-2);
  if (!hidden.defined() && (T <= S || !a.rule.hides_keys())) {
    return {};
  }
  // Query t sees the keys [first[t], end[t]) that are not hidden.
  const auto seen = cpu::visibility_of(a.rule, T, S, S - T);
  const auto query = torch::arange(T, positions_on(a.query.device()));
  const auto first = (query + seen.lower).clamp(0, S);
  const auto end = (query + seen.upper).clamp(0, S);
  if (!hidden.defined()) {
    return (first >= end).view({1, 1, T});
  }
  const auto keys = hidden.expand({-1, -1, -1, S}).squeeze(2);
  const auto seen_before =
      torch::constant_pad_nd(keys.logical_not().cumsum(-1), {1, 0});
  return seen_before.index_select(-1, first) >=
      seen_before.index_select(-1, end);
}

std::pair<int64_t, int64_t> visible_keys(
    const ScoreRule& rule,
    int64_t first,
    int64_t num_queries,
    int64_t num_keys) {
  const auto seen = cpu::visibility_of(rule, num_queries, num_keys, first);
  return {seen.first(0), seen.end(num_queries - 1)};
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
  auto keys = torch::arange(S, positions_on(device));
  auto queries = distant_positions(a, dim, T, S, device);
  // Numbers up to which float32 has all integers: half the memory.
  constexpr int64_t kExact = int64_t{1} << 24;
  if (T + S < kExact && !(a.sinks.defined() && a.query_offsets.defined())) {
    keys = keys.to(a.alibi_slopes.scalar_type());
    queries = queries.to(a.alibi_slopes.scalar_type());
  }
  const auto ahead = queries - keys;
  // Not abs, which C++ lacks on the meta device.
  const auto distance = torch::maximum(ahead, -ahead);
  return distance * a.alibi_slopes.neg().view({-1, 1, 1});
}

} // namespace torch_attention::kernels
