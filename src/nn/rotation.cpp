#include <nn/rotation.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace torch_attention::detail {

namespace {

constexpr int64_t kFirstLength = 64;

/// Positions from here on are computed when asked for: a table of all that come
/// before would take too much memory.
constexpr int64_t kMaxLength = int64_t{1} << 16;

constexpr double kFullTurn = 6.283185307179586;

double fast_turns(const RotaryOptions& options) {
  const bool yarn = options.scaling() == RotaryScaling::kYarn;
  return options.fast_turns().value_or(yarn ? 32 : 4);
}

/// How much of its frequency each pair keeps, (pairs) in [0, 1], as `scaling`
/// says; the rest is divided by `factor`.
torch::Tensor kept_share(
    const RotaryOptions& options,
    const torch::Tensor& frequencies,
    int64_t dim) {
  const auto fast = fast_turns(options);
  const auto slow = options.slow_turns();
  const auto length =
      static_cast<double>(options.original_context_length().value_or(0));
  if (options.scaling() == RotaryScaling::kLlama3) {
    const auto turns = frequencies * (length / kFullTurn);
    return ((turns - slow) / (fast - slow)).clamp(0, 1);
  }
  // The places of pairs that turn so often, as if there were such.
  const auto place = [&](double turns) {
    return static_cast<double>(dim) * std::log(length / (turns * kFullTurn)) /
        (2 * std::log(options.theta()));
  };
  const auto first = std::max(std::floor(place(fast)), 0.0);
  auto last = std::min(std::ceil(place(slow)), static_cast<double>(dim - 1));
  if (first == last) {
    last += 0.001;
  }
  const auto places = torch::arange(dim / 2).to(torch::kFloat);
  return 1 - ((places - first) / (last - first)).clamp(0, 1);
}

/// The angle by which each pair is rotated from one token to the next, (pairs):
/// `inv_freq` of `transformers`, by the same operations in float32, since a
/// long context multiplies what is rounded otherwise.
torch::Tensor frequencies(const RotaryOptions& options, int64_t head_dim) {
  const auto dim = options.dim().value_or(head_dim);
  const auto exponents =
      torch::arange(0, dim, 2, torch::kLong).to(torch::kFloat) /
      static_cast<double>(dim);
  const auto trained = torch::pow(options.theta(), exponents).reciprocal();
  const auto slowed = trained / options.factor();
  if (options.scaling() == RotaryScaling::kLinear) {
    return slowed;
  }
  const auto kept = kept_share(options, trained, dim);
  return slowed * (1 - kept) + trained * kept;
}

/// What cosines and sines are multiplied with.
double amplitude(const RotaryOptions& options) {
  return options.scaling() == RotaryScaling::kYarn
      ? options.attention_factor().value_or(
            1 + 0.1 * std::log(std::max(1.0, options.factor())))
      : 1.0;
}

void check_scaling(const char* name, const RotaryOptions& options) {
  const bool linear = options.scaling() == RotaryScaling::kLinear;
  const bool yarn = options.scaling() == RotaryScaling::kYarn;
  TORCH_CHECK(
      (!linear ||
       (!options.original_context_length() && !options.fast_turns())) &&
          (yarn || !options.attention_factor()),
      name,
      ": rotary scaling ",
      options.scaling(),
      linear ? " has no original_context_length, fast_turns and" : " has no",
      " attention_factor; expected another scaling, or them unset");
  if (linear) {
    return;
  }
  TORCH_CHECK(
      options.original_context_length().value_or(0) > 0,
      name,
      ": expected original_context_length > 0 for rotary scaling ",
      options.scaling(),
      ", but got ",
      options.original_context_length()
          ? c10::str(*options.original_context_length())
          : "none");
  const auto fast = fast_turns(options);
  const auto slow = options.slow_turns();
  TORCH_CHECK(
      slow > 0 && fast > slow && std::isfinite(fast),
      name,
      ": expected finite fast_turns > slow_turns > 0 for rotary scaling, but "
      "got ",
      fast,
      " and ",
      slow);
  TORCH_CHECK(
      !yarn || options.theta() > 1,
      name,
      ": expected theta > 1 for rotary scaling yarn, but got ",
      options.theta());
  TORCH_CHECK(
      std::isfinite(amplitude(options)) && amplitude(options) > 0,
      name,
      ": expected a finite attention_factor > 0 for rotary scaling, but got ",
      amplitude(options));
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
  check_scaling(name, options);
}

Rotation rotation_at(
    const torch::Tensor& positions,
    const RotaryOptions& options,
    int64_t head_dim) {
  const auto step = frequencies(options, head_dim).to(positions.device());
  const auto angles =
      (positions.to(torch::kFloat).unsqueeze(-1) * step).to(torch::kDouble);
  const auto scaled = [&](const torch::Tensor& x) {
    return (x * amplitude(options)).to(torch::kFloat);
  };
  return {scaled(angles.cos()), scaled(angles.sin())};
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
  if (first.defined() && first.numel() > 0) {
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

Rotation RotaryTable::at_positions(
    const torch::Tensor& positions,
    torch::Device device) {
  const auto with_heads = [&](const torch::Tensor& x) {
    return positions.dim() == 1 ? x : x.unsqueeze(1);
  };
  // Elsewhere to look for the highest would mean to wait for the device.
  const bool seen = positions.is_cpu() && positions.numel() > 0;
  const auto highest = seen ? positions.max().item<int64_t>() : kMaxLength;
  if (highest >= kMaxLength) {
    const auto made = rotation_at(positions.to(device), options_, head_dim_);
    return {with_heads(made.cos), with_heads(made.sin)};
  }
  const auto table = up_to(highest + 1, device);
  const auto places = positions.to(device);
  return {
      with_heads(table.cos.index({places})),
      with_heads(table.sin.index({places}))};
}

Rotation RotaryTable::up_to(int64_t length, torch::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto have = table_.cos.defined() ? table_.cos.size(0) : 0;
  if (!table_.cos.defined() || have < length || table_.cos.device() != device) {
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
