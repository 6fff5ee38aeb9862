#include <nn/rotary.h>

#include <check.h>
#include <elementwise.h>
#include <kernels/plain.h>
#include <kernels/rotary.h>

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace torch_attention::detail {

namespace {

constexpr int64_t kFirstLength = 64;

/// Tables have at most this many positions, which bounds their memory. Angles
/// of larger positions are computed in each call.
constexpr int64_t kMaxLength = int64_t{1} << 16;

constexpr double kFullTurn = 6.283185307179586;

double fast_turns(const RotaryOptions& options) {
  const bool yarn = options.scaling() == RotaryScaling::kYarn;
  return options.fast_turns().value_or(yarn ? 32 : 4);
}

double original_length(const RotaryOptions& options) {
  return static_cast<double>(options.original_context_length().value_or(0));
}

bool changes_with_length(const RotaryOptions& options) {
  return options.scaling() == RotaryScaling::kDynamic ||
      options.scaling() == RotaryScaling::kLongRope;
}

/// Returns whether a sequence of `length` tokens has other angles than short
/// ones.
bool is_long(const RotaryOptions& options, int64_t length) {
  return changes_with_length(options) &&
      length > options.original_context_length().value_or(0);
}

/// Returns whether the frequencies differ for each length.
bool goes_by_length(const RotaryOptions& options, int64_t length) {
  return options.scaling() == RotaryScaling::kDynamic &&
      is_long(options, length);
}

/// Returns theta for a sequence of `length` tokens, computed in float32 as in
/// `transformers`.
double theta_of(const RotaryOptions& options, int64_t dim, int64_t length) {
  if (!goes_by_length(options, length)) {
    return options.theta();
  }
  const auto factor = static_cast<float>(options.factor());
  const auto stretched = factor * static_cast<float>(length) /
      static_cast<float>(original_length(options));
  const auto power = static_cast<float>(dim) / static_cast<float>(dim - 2);
  return static_cast<float>(options.theta()) *
      std::pow(stretched - (factor - 1), power);
}

/// Returns the weight of each pair's original frequency, (pairs) in [0, 1],
/// when it is interpolated with the frequency divided by `factor`.
torch::Tensor original_share(
    const RotaryOptions& options,
    const torch::Tensor& frequencies,
    int64_t dim) {
  const auto fast = fast_turns(options);
  const auto slow = options.slow_turns();
  const auto length = original_length(options);
  if (options.scaling() == RotaryScaling::kLlama3) {
    const auto turns = frequencies * (length / kFullTurn);
    if (fast == slow) {
      return (turns >= slow).to(torch::kFloat);
    }
    return ((turns - slow) / (fast - slow)).clamp(0, 1);
  }
  // The fractional index of the pair that turns `turns` times.
  const auto place = [&](double turns) {
    return static_cast<double>(dim) * std::log(length / (turns * kFullTurn)) /
        (2 * std::log(options.theta()));
  };
  const bool whole = options.truncate();
  const auto first =
      std::max(whole ? std::floor(place(fast)) : place(fast), 0.0);
  auto last = std::min(
      whole ? std::ceil(place(slow)) : place(slow),
      static_cast<double>(dim - 1));
  if (first == last) {
    last += 0.001;
  }
  const auto places = torch::arange(dim / 2).to(torch::kFloat);
  return 1 - ((places - first) / (last - first)).clamp(0, 1);
}

/// Returns the angle between consecutive tokens for each pair, (pairs):
/// `inv_freq` of `transformers`, by the same float32 operations, since a long
/// context multiplies rounding differences.
torch::Tensor frequencies(
    const RotaryOptions& options,
    int64_t head_dim,
    int64_t length) {
  const auto dim = options.dim().value_or(head_dim);
  const auto exponents =
      torch::arange(0, dim, 2, torch::kLong).to(torch::kFloat) /
      static_cast<double>(dim);
  const auto turns = torch::pow(theta_of(options, dim, length), exponents);
  if (options.scaling() == RotaryScaling::kLongRope) {
    const auto& factors = is_long(options, length) ? options.long_factors()
                                                   : options.short_factors();
    return (torch::tensor(factors, torch::kFloat) * turns).reciprocal();
  }
  const auto trained = turns.reciprocal();
  if (options.scaling() == RotaryScaling::kDynamic) {
    return trained;
  }
  const auto slowed = trained / options.factor();
  if (options.scaling() == RotaryScaling::kLinear) {
    return slowed;
  }
  const auto share = original_share(options, trained, dim);
  return slowed * (1 - share) + trained * share;
}

/// Returns the factor of cosines and sines.
double amplitude(const RotaryOptions& options) {
  const auto growth = std::log(std::max(1.0, options.factor()));
  switch (options.scaling()) {
    case RotaryScaling::kYarn:
      return options.attention_factor().value_or(1 + 0.1 * growth);
    case RotaryScaling::kLongRope:
      return options.attention_factor().value_or(
          growth > 0
              ? std::sqrt(1 + growth / std::log(original_length(options)))
              : 1.0);
    default:
      return 1.0;
  }
}

/// Checks that no parameter is set that the scaling does not have.
void check_parameters(const char* name, const RotaryOptions& options) {
  const auto scaling = options.scaling();
  const auto check = [&](const char* parameter,
                         bool is_set,
                         const std::vector<RotaryScaling>& scalings) {
    TORCH_ATTENTION_CHECK(
        !is_set ||
            std::find(scalings.begin(), scalings.end(), scaling) !=
                scalings.end(),
        "{}: rotary scaling {} has no {}; expected another scaling, or it "
        "unset",
        name,
        scaling,
        parameter);
  };
  constexpr auto kLlama3 = RotaryScaling::kLlama3;
  constexpr auto kYarn = RotaryScaling::kYarn;
  constexpr auto kDynamic = RotaryScaling::kDynamic;
  constexpr auto kLongRope = RotaryScaling::kLongRope;
  check(
      "original_context_length",
      options.original_context_length().has_value(),
      {kLlama3, kYarn, kDynamic, kLongRope});
  check("fast_turns", options.fast_turns().has_value(), {kLlama3, kYarn});
  check(
      "slow_turns",
      options.slow_turns() != RotaryOptions().slow_turns(),
      {kLlama3, kYarn});
  check(
      "attention_factor",
      options.attention_factor().has_value(),
      {kYarn, kLongRope});
  check("truncate", !options.truncate(), {kYarn});
  check("short_factors", !options.short_factors().empty(), {kLongRope});
  check("long_factors", !options.long_factors().empty(), {kLongRope});
}

void check_turns(const char* name, const RotaryOptions& options) {
  const auto fast = fast_turns(options);
  const auto slow = options.slow_turns();
  // Llama 4 and Kimi K2 set both to the same number.
  const bool may_be_equal = options.scaling() == RotaryScaling::kLlama3 ||
      options.scaling() == RotaryScaling::kYarn;
  TORCH_ATTENTION_CHECK(
      slow > 0 && (fast > slow || (fast == slow && may_be_equal)) &&
          std::isfinite(fast),
      "{}: expected finite fast_turns > slow_turns > 0 for rotary "
      "scaling, but got {} and {}",
      name,
      fast,
      slow);
}

void check_factors(
    const char* name,
    const char* parameter,
    const std::vector<double>& factors,
    int64_t pairs) {
  TORCH_ATTENTION_CHECK(
      static_cast<int64_t>(factors.size()) == pairs &&
          std::all_of(
              factors.begin(),
              factors.end(),
              [](double x) { return std::isfinite(x) && x > 0; }),
      "{}: expected {} of rotary scaling longrope that are {} finite "
      "numbers > 0, one for each pair, but got {}",
      name,
      parameter,
      pairs,
      c10::ArrayRef<double>(factors));
}

void check_scaling(
    const char* name,
    const RotaryOptions& options,
    int64_t dim) {
  check_parameters(name, options);
  const auto scaling = options.scaling();
  if (scaling == RotaryScaling::kLinear) {
    return;
  }
  TORCH_ATTENTION_CHECK(
      options.original_context_length().value_or(0) > 0,
      "{}: expected original_context_length > 0 for rotary scaling {}, "
      "but got {}",
      name,
      scaling,
      options.original_context_length()
          ? c10::str(*options.original_context_length())
          : "none");
  const bool yarn = scaling == RotaryScaling::kYarn;
  if (yarn || scaling == RotaryScaling::kLlama3) {
    check_turns(name, options);
  }
  TORCH_ATTENTION_CHECK(
      !yarn || options.theta() > 1,
      "{}: expected theta > 1 for rotary scaling yarn, but got {}",
      name,
      options.theta());
  TORCH_ATTENTION_CHECK(
      scaling != RotaryScaling::kDynamic || (dim > 2 && options.factor() >= 1),
      "{}: expected dim > 2 and a factor >= 1 for rotary scaling "
      "dynamic, but got dim = {}, factor = {}",
      name,
      dim,
      options.factor());
  if (scaling == RotaryScaling::kLongRope) {
    check_factors(name, "short_factors", options.short_factors(), dim / 2);
    check_factors(name, "long_factors", options.long_factors(), dim / 2);
  }
  TORCH_ATTENTION_CHECK(
      std::isfinite(amplitude(options)) && amplitude(options) > 0,
      "{}: expected a finite attention_factor > 0 for rotary scaling, "
      "but got {}",
      name,
      amplitude(options));
}

/// Exchanges the second and the third quarter of the first 4 `quarter`
/// elements: pairs of each half become pairs of the whole, and those of the
/// whole become pairs of each half.
torch::Tensor with_swapped_quarters(const torch::Tensor& x, int64_t quarter) {
  const auto part = [&](int64_t i) {
    return x.slice(-1, i * quarter, (i + 1) * quarter);
  };
  return torch::cat(
      {part(0), part(2), part(1), part(3), x.slice(-1, 4 * quarter)}, -1);
}

} // namespace

void check_rotary(
    const char* name,
    const RotaryOptions& options,
    int64_t head_dim) {
  TORCH_ATTENTION_CHECK(
      options.theta() > 0 && std::isfinite(options.theta()),
      "{}: expected a finite theta > 0 for rotary embedding, but got {}",
      name,
      options.theta());
  TORCH_ATTENTION_CHECK(
      options.factor() > 0 && std::isfinite(options.factor()),
      "{}: expected a finite factor > 0 for rotary embedding, but got {}",
      name,
      options.factor());
  const auto dim = options.dim().value_or(head_dim);
  TORCH_ATTENTION_CHECK(
      dim > 0 && dim <= head_dim && dim % 2 == 0,
      "{}: expected an even dim in [2, head_dim = {}] for rotary "
      "embedding, but got {}",
      name,
      head_dim,
      dim);
  TORCH_ATTENTION_CHECK(
      options.pairing() != RotaryPairing::kHalvesOfHalves || dim % 4 == 0,
      "{}: expected a dim divisible by 4 for rotary embedding with "
      "kHalvesOfHalves, but got {}",
      name,
      dim);
  check_scaling(name, options, dim);
}

int64_t end_of(const torch::Tensor& positions) {
  if (positions.numel() == 0) {
    return 0;
  }
  const auto highest = positions.max().item<int64_t>();
  return highest == std::numeric_limits<int64_t>::max() ? highest : highest + 1;
}

RotaryAngles rotary_angles_at(
    const torch::Tensor& positions,
    const RotaryOptions& options,
    int64_t head_dim,
    const std::optional<int64_t>& length) {
  const auto of_text = length        ? *length
      : changes_with_length(options) ? end_of(positions)
                                     : 0;
  const auto step =
      frequencies(options, head_dim, of_text).to(positions.device());
  // Devices compute float64 slowly, and the sines of float32 well.
  const auto dtype = positions.is_cpu() ? torch::kDouble : torch::kFloat;
  const auto angles =
      (positions.to(torch::kFloat).unsqueeze(-1) * step).to(dtype);
  const auto scaled = [&](double factor, auto function) {
    return (by_rows(angles, function) * factor).to(torch::kFloat);
  };
  const auto size = amplitude(options);
  return {
      scaled(size, [](const torch::Tensor& x) { return x.cos(); }),
      scaled(options.reversed() ? -size : size, [](const torch::Tensor& x) {
        return x.sin();
      })};
}

torch::Tensor rotate(
    const torch::Tensor& x,
    const RotaryAngles& angles,
    RotaryPairing pairing,
    Kernel kernel) {
  if (pairing == RotaryPairing::kHalvesOfHalves) {
    const auto pairs = angles.cos.size(-1);
    TORCH_ATTENTION_CHECK(
        pairs % 2 == 0,
        "rotary embedding of halves of halves: expected a multiple of 4 rotated "
        "elements, but got {}",
        2 * pairs);
    const auto rotated = kernels::rotate(
        with_swapped_quarters(x, pairs / 2),
        angles.cos,
        angles.sin,
        /*by_halves=*/true,
        kernel);
    return with_swapped_quarters(rotated, pairs / 2);
  }
  return kernels::rotate(
      x, angles.cos, angles.sin, pairing == RotaryPairing::kHalves, kernel);
}

RotaryTable::RotaryTable(RotaryOptions options, int64_t head_dim)
    : options_(std::move(options)), head_dim_(head_dim) {}

bool RotaryTable::changes_with_length() const {
  return detail::changes_with_length(options_);
}

RotaryAngles RotaryTable::at(
    const torch::Tensor& first,
    int64_t T,
    torch::Device device,
    const std::optional<int64_t>& length) {
  int64_t least = 0;
  int64_t most = 0;
  if (first.defined() && first.numel() > 0) {
    const auto* begin = first.const_data_ptr<int64_t>();
    const auto [low, high] = std::minmax_element(begin, begin + first.numel());
    least = *low;
    most = *high;
  }
  const auto rows = most + T;
  const auto of_text = length.value_or(rows);
  const bool has_table = !goes_by_length(options_, of_text);
  if (least == most && has_table) {
    const auto table = up_to(rows, of_text, device);
    return {table.cos.slice(0, least, rows), table.sin.slice(0, least, rows)};
  }
  const auto steps = torch::arange(T, torch::kLong);
  return gathered(
      least == most ? steps + least : first.unsqueeze(1) + steps,
      has_table ? std::make_optional(rows) : std::nullopt,
      of_text,
      device);
}

RotaryAngles RotaryTable::at_positions(
    const torch::Tensor& positions,
    torch::Device device,
    const std::optional<int64_t>& length) {
  // Skipped on a GPU: reading the highest position would synchronise.
  const auto rows = positions.is_cpu() || changes_with_length()
      ? end_of(positions)
      : kMaxLength + 1;
  const auto of_text = length.value_or(rows);
  const bool has_table =
      rows <= kMaxLength && !goes_by_length(options_, of_text);
  return gathered(
      positions,
      has_table ? std::make_optional(rows) : std::nullopt,
      of_text,
      device);
}

RotaryAngles RotaryTable::gathered(
    const torch::Tensor& positions,
    const std::optional<int64_t>& rows,
    int64_t length,
    torch::Device device) {
  const auto places = kernels::sent_to(device, positions);
  const auto with_heads = [&](const torch::Tensor& x) {
    return places.dim() == 1 ? x : x.unsqueeze(1);
  };
  if (!rows) {
    const auto made = rotary_angles_at(places, options_, head_dim_, length);
    return {with_heads(made.cos), with_heads(made.sin)};
  }
  const auto table = up_to(*rows, length, device);
  return {
      with_heads(table.cos.index({places})),
      with_heads(table.sin.index({places}))};
}

RotaryAngles RotaryTable::up_to(
    int64_t rows,
    int64_t length,
    torch::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& table = tables_.at(is_long(options_, length) ? 1 : 0);
  const auto have = table.cos.defined() ? table.cos.size(0) : 0;
  if (!table.cos.defined() || have < rows || table.cos.device() != device) {
    // A tensor made in inference mode could not be used outside of it.
    const c10::InferenceMode normal_tensors(false);
    const torch::NoGradGuard no_grad;
    const auto wanted =
        have >= rows ? have : std::max({rows, 2 * have, kFirstLength});
    const auto made =
        rotary_angles_at(torch::arange(wanted), options_, head_dim_, length);
    table = {made.cos.to(device), made.sin.to(device)};
  }
  return table;
}

} // namespace torch_attention::detail
