#include <nn/rotation.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace torch_attention::detail {

namespace {

constexpr int64_t kFirstLength = 64;

/// The angle by which each pair is rotated from one token to the next, (pairs):
/// LlamaRotaryEmbedding's `inv_freq`, by the same operations in float32, since
/// a long context multiplies what is rounded otherwise.
torch::Tensor frequencies(const RotaryOptions& options, int64_t head_dim) {
  const auto dim = options.dim().value_or(head_dim);
  const auto exponents =
      torch::arange(0, dim, 2, torch::kLong).to(torch::kFloat) /
      static_cast<double>(dim);
  return torch::pow(options.theta(), exponents).reciprocal() / options.factor();
}

} // namespace

void check_rotary(
    const char* name,
    const RotaryOptions& options,
    int64_t head_dim) {
  TORCH_CHECK(
      options.theta() > 0 && std::isfinite(options.theta()),
      name,
      ": expected a finite theta > 0 for rotary embedding, but got ",
      options.theta());
  TORCH_CHECK(
      options.factor() > 0 && std::isfinite(options.factor()),
      name,
      ": expected a finite factor > 0 for rotary embedding, but got ",
      options.factor());
  const auto dim = options.dim().value_or(head_dim);
  TORCH_CHECK(
      dim > 0 && dim <= head_dim && dim % 2 == 0,
      name,
      ": expected an even dim in [2, head_dim = ",
      head_dim,
      "] for rotary embedding, but got ",
      dim);
}

Rotation rotation_at(
    const torch::Tensor& positions,
    const RotaryOptions& options,
    int64_t head_dim) {
  const auto step = frequencies(options, head_dim).to(positions.device());
  const auto angles =
      (positions.to(torch::kFloat).unsqueeze(-1) * step).to(torch::kDouble);
  return {angles.cos().to(torch::kFloat), angles.sin().to(torch::kFloat)};
}

torch::Tensor rotate(
    const torch::Tensor& x,
    const Rotation& rotation,
    RotaryPairing pairing) {
  const auto& [cos, sin] = rotation;
  const auto pairs = cos.size(-1);
  const auto dim = 2 * pairs;
  // (..., dim) as pairs: (..., 2, pairs) or (..., pairs, 2).
  const bool halves = pairing == RotaryPairing::kHalves;
  const std::vector<int64_t> split =
      halves ? std::vector<int64_t>{2, pairs} : std::vector<int64_t>{pairs, 2};
  const int64_t of_pair = halves ? -2 : -1;
  const auto unrotated = x.slice(-1, 0, dim).unflatten(-1, split);
  const auto first = unrotated.select(of_pair, 0);
  const auto second = unrotated.select(of_pair, 1);
  const auto rotated =
      torch::stack(
          {first * cos - second * sin, second * cos + first * sin}, of_pair)
          .flatten(-2)
          .to(x.scalar_type());
  return dim == x.size(-1) ? rotated
                           : torch::cat({rotated, x.slice(-1, dim)}, -1);
}

RotaryTable::RotaryTable(RotaryOptions options, int64_t head_dim)
    : options_(options), head_dim_(head_dim) {}

Rotation RotaryTable::at(
    const torch::Tensor& first,
    int64_t T,
    torch::Device device) {
  int64_t least = 0;
  int64_t most = 0;
  if (first.defined()) {
    const auto* begin = first.const_data_ptr<int64_t>();
    const auto [low, high] = std::minmax_element(begin, begin + first.numel());
    least = *low;
    most = *high;
  }
  const auto table = up_to(most + T, device);
  if (least == most) {
    return {
        table.cos.slice(0, least, least + T),
        table.sin.slice(0, least, least + T)};
  }
  const auto positions =
      (first.unsqueeze(1) + torch::arange(T, torch::kLong)).to(device);
  return {
      table.cos.index({positions}).unsqueeze(1),
      table.sin.index({positions}).unsqueeze(1)};
}

Rotation RotaryTable::up_to(int64_t length, torch::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto have = table_.cos.defined() ? table_.cos.size(0) : 0;
  if (have < length || table_.cos.device() != device) {
    // A tensor made in inference mode could not be used outside of it.
    const c10::InferenceMode normal_tensors(false);
    const torch::NoGradGuard no_grad;
    const auto rows =
        have >= length ? have : std::max({length, 2 * have, kFirstLength});
    const auto made = rotation_at(torch::arange(rows), options_, head_dim_);
    table_ = {made.cos.to(device), made.sin.to(device)};
  }
  return table_;
}

} // namespace torch_attention::detail
