#include <operators/takes.h>

#include <operators/broadcast.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/aminmax.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace torch_attention::operators {

namespace {

/// Returns whether a tensor on `device` has memory with its own values.
bool is_ordinary(const torch::Tensor& x, torch::Device device) {
  return x.defined() && x.layout() == torch::kStrided && !x.is_nested() &&
      !x.is_quantized() && !at::isTensorSubclassLike(x) &&
      x.device() == device && x.device() != torch::kMeta;
}

/// Ranks dtypes by the precision of computations in them; 0 if attention is not
/// computed in a dtype.
int precision_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kHalf:
    case torch::kBFloat16:
      return 1;
    case torch::kFloat:
      return 2;
    case torch::kDouble:
      return 3;
    default:
      return 0;
  }
}

/// Returns whether a cast from `own` to `dtype` loses no precision.
bool keeps_numbers(torch::ScalarType own, torch::ScalarType dtype) {
  return dtype == own || precision_of(dtype) > precision_of(own);
}

/// Returns the sizes of the scores, (..., T, S); empty if the three tensors do
/// not fit together.
Sizes sizes_of_scores(
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    const torch::Tensor& value) {
  const auto device = query.device();
  for (const auto* x : {&query, &transposed_key, &value}) {
    if (!is_ordinary(*x, device) || x->dim() < 2 || x->numel() == 0 ||
        x->scalar_type() != query.scalar_type()) {
      return {};
    }
  }
  if (precision_of(query.scalar_type()) == 0 ||
      query.size(-1) != transposed_key.size(-2) ||
      transposed_key.size(-1) != value.size(-2)) {
    return {};
  }
  const auto sizes = product_sizes(query, transposed_key);
  if (!sizes) {
    return {};
  }
  Sizes all(sizes->begin(), sizes->end() - 2);
  return broadcast(all, leading(value)) ? *sizes : Sizes();
}

bool fits(
    const torch::Tensor& mask,
    const torch::Tensor& query,
    const Sizes& scores) {
  return is_ordinary(mask, query.device()) &&
      mask.dim() <= static_cast<int64_t>(scores.size()) &&
      at::is_expandable_to(mask.sizes(), scores);
}

double largest_of(const torch::Tensor& x) {
  const auto [least, most] = at::aminmax(x);
  // Both are NaN if one element is.
  return std::max(
      std::abs(least.item<double>()), std::abs(most.item<double>()));
}

/// Returns how far biases may lift a score; not finite if some bias is NaN or
/// +inf, which keys that are hidden first and biased then do not lose.
double lift_of(torch::TensorList biases) {
  double lift = 0;
  for (const auto& bias : biases) {
    const auto most = bias.max().item<double>();
    lift += std::isnan(most) ? most : std::max(0.0, most);
  }
  return lift;
}

/// Returns whether masked_fill refuses a number for scores of this dtype.
bool is_beyond(double fill, torch::ScalarType dtype) {
  return dtype == torch::kHalf && std::isfinite(fill) &&
      std::abs(fill) > std::numeric_limits<c10::Half>::max();
}

/// Returns the difference from which on exp is 0 in the dtype of the
/// computation.
double vanishing_difference(torch::ScalarType dtype) {
  return dtype == torch::kDouble ? 750 : 110;
}

/// Returns whether keys whose scores are replaced by `fill` get weights of
/// exactly 0, as if they were hidden.
bool hides(
    double fill,
    double largest_score,
    double difference,
    double lift,
    torch::TensorList hiding,
    torch::TensorList biases) {
  auto hidden = hiding[0];
  for (const auto& mask : hiding.slice(1)) {
    hidden = hidden.logical_or(mask);
  }
  if (biases.empty()) {
    return fill < -2 * largest_score - difference &&
        !hidden.all(-1).any().item<bool>();
  }
  // A key counts as visible if the biases leave it far above the fill. Biases
  // of hidden keys must not lift the fill up to that level.
  const auto lowest_seen = fill / 4;
  torch::Tensor sum;
  for (const auto& bias : biases) {
    sum = sum.defined() ? sum + bias : bias;
  }
  const auto seen = sum.ge(lowest_seen).logical_and(hidden.logical_not());
  return fill + lift < lowest_seen - 2 * largest_score - difference &&
      seen.any(-1).all().item<bool>();
}

} // namespace

bool takes(
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    const torch::Tensor& value,
    int64_t dim,
    double scale,
    torch::IntArrayRef dtypes,
    torch::TensorList hiding,
    torch::ArrayRef<double> fills,
    torch::TensorList biases,
    torch::IntArrayRef own_dtypes) {
  const auto scores = sizes_of_scores(query, transposed_key, value);
  const auto rank = static_cast<int64_t>(scores.size());
  if (scores.empty() || !(scale > 0) || !std::isfinite(scale) ||
      (dim != -1 && dim != rank - 1)) {
    return false;
  }
  const auto own = query.scalar_type();
  for (const auto dtype : dtypes) {
    if (!keeps_numbers(own, static_cast<torch::ScalarType>(dtype))) {
      return false;
    }
  }
  for (const auto dtype : own_dtypes) {
    if (static_cast<torch::ScalarType>(dtype) != own) {
      return false;
    }
  }
  for (const auto& mask : hiding) {
    if (!fits(mask, query, scores) || mask.scalar_type() != torch::kBool) {
      return false;
    }
  }
  for (const auto& bias : biases) {
    if (!fits(bias, query, scores) ||
        precision_of(bias.scalar_type()) < precision_of(own)) {
      return false;
    }
  }
  auto highest = -std::numeric_limits<double>::infinity();
  for (const auto fill : fills) {
    // A fill that is no plain number, as one that needs a gradient, is NaN.
    if (std::isnan(fill) || (dtypes.empty() && is_beyond(fill, own))) {
      return false;
    }
    highest = std::max(highest, fill);
  }
  const torch::NoGradGuard no_grad;
  const auto lift = hiding.empty() ? 0 : lift_of(biases);
  if (!std::isfinite(lift)) {
    return false;
  }
  if (std::isinf(highest)) {
    return highest < 0;
  }
  const auto largest_score = largest_of(query) * largest_of(transposed_key) *
      static_cast<double>(query.size(-1)) * scale;
  return hides(
      highest, largest_score, vanishing_difference(own), lift, hiding, biases);
}

bool takes_sdpa(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  if (key.dim() < 2 || !(dropout_p >= 0 && dropout_p <= 1) ||
      (scale && !(*scale > 0 && std::isfinite(*scale)))) {
    return false;
  }
  auto one_key = key.transpose(-2, -1);
  auto one_value = value;
  if (enable_gqa && query.dim() >= 3 && key.dim() >= 3 && value.dim() >= 3) {
    const auto heads = key.size(-3);
    if (heads == 0 || value.size(-3) != heads || query.size(-3) % heads != 0) {
      return false;
    }
    // All query heads broadcast to one key head, and all key heads have its
    // sizes.
    one_key = one_key.narrow(-3, 0, 1);
    one_value = one_value.narrow(-3, 0, 1);
  }
  const auto scores = sizes_of_scores(query, one_key, one_value);
  if (scores.empty()) {
    return false;
  }
  if (!attn_mask || !attn_mask->defined()) {
    return true;
  }
  return !is_causal && attn_mask->dim() >= 2 &&
      fits(*attn_mask, query, scores) &&
      (attn_mask->scalar_type() == torch::kBool ||
       attn_mask->scalar_type() == query.scalar_type());
}

double product(
    const torch::Scalar& constant,
    torch::TensorList factors,
    const c10::List<bool>& divides) {
  auto number = constant.toDouble();
  for (size_t i = 0; i < factors.size(); ++i) {
    const auto& x = factors[i];
    // Scores may have only two dimensions. A factor with more would add some.
    if (!is_ordinary(x, x.device()) || x.numel() != 1 || x.dim() > 2 ||
        x.is_complex() || x.scalar_type() == torch::kBool ||
        (torch::GradMode::is_enabled() && x.requires_grad())) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    const auto factor = x.item<double>();
    number = divides[i] ? number / factor : number * factor;
  }
  return number;
}

} // namespace torch_attention::operators
