#include <tools/allowance.h>

#include <check.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace torch_attention::tools {

namespace {

/// Returns "output", "gradient" or "trained": the first word of a name.
std::string kind(const std::string& name) {
  return name.substr(0, name.find(' '));
}

/// Returns the name of the weight that belongs to a bias; "" for other tensors.
std::string weight_of_bias(const std::string& name) {
  const std::string bias = ".bias";
  const auto dot = name.rfind('.');
  return dot != std::string::npos && name.substr(dot) == bias
      ? name.substr(0, dot) + ".weight"
      : "";
}

/// Returns the distance from 1 to the next number.
double epsilon_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return std::numeric_limits<double>::epsilon();
    case torch::kBFloat16:
      return std::ldexp(1, -7);
    case torch::kHalf:
      return std::ldexp(1, -10);
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

/// Returns the epsilon of sums in matrix products, which are at least float32.
double epsilon_of_sums(torch::ScalarType dtype) {
  return std::min<double>(
      epsilon_of(dtype), std::numeric_limits<float>::epsilon());
}

} // namespace

Allowance::Allowance(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel)
    : case_(verification_case),
      same_operations_(device.is_cpu() && kernel == Kernel::kReference) {}

double Allowance::scale(const std::string& name) const {
  const auto largest = largest_of(case_.expected[name]);
  const auto* weight = case_.expected.find(weight_of_bias(name));
  return weight == nullptr ? largest : std::max(largest, largest_of(*weight));
}

double Allowance::allowed(const std::string& name) const {
  const auto allowed = tolerance(name).allowed(scale(name));
  const auto parameter = parameter_of_trained(name);
  if (parameter.empty()) {
    return allowed + rounding(name);
  }
  // A gradient that differs by the allowed amount changes a step of AdamW by at
  // most lr / eps times that amount.
  const auto longest = longest_way(name);
  const auto gradient = gradient_name(parameter);
  const auto of_gradient = case_.expected.contains(gradient)
      ? longest / 2 / case_.run.adamw.eps * this->allowed(gradient)
      : longest;
  return allowed + std::min(longest, rounding(name) + of_gradient);
}

void Allowance::check_rounding() const {
  for (const auto& item : case_.rounding) {
    const auto& name = item.first;
    // Scores of several hundred have many times the usual rounding error. A
    // share above a quarter would leave nothing to compare.
    const auto share = std::min(128 * relative_bound(name), 0.25);
    const auto most = tolerance(name).atol + share * largest_of_kind(name) +
        (parameter_of_trained(name).empty() ? 0 : longest_way(name));
    TORCH_ATTENTION_CHECK(
        item.second <= most,
        "the archive's own code gives another {} in float64, by {:.1e}; "
        "rounding explains at most {:.1e}. With it any result would pass",
        name,
        item.second,
        most);
  }
}

Tolerance Allowance::tolerance(const std::string& name) const {
  return tolerance_of(case_.expected[name].scalar_type(), same_operations_);
}

double Allowance::rounding(const std::string& name) const {
  const auto measured = case_.rounding.find(name);
  if (measured != case_.rounding.end()) {
    // Another order of operations may deviate as far to the other side of the
    // exact result, and the maximum of a few differences depends on chance.
    return 4 * measured->second;
  }
  // With dropout only the same operations are compared. Trained weights get the
  // allowance of their gradients instead.
  return case_.has_dropout() || !parameter_of_trained(name).empty()
      ? 0
      : relative_bound(name) * scale_of_summands(name);
}

double Allowance::longest_way(const std::string& name) const {
  const auto& adamw = case_.run.adamw;
  // Squares of small gradients are small multiples of float16's smallest
  // number, and rounding takes up to a third of them.
  const auto longer =
      case_.expected[name].scalar_type() == torch::kHalf ? std::sqrt(1.5) : 1.0;
  return 2 * adamw.lr * longer * static_cast<double>(adamw.steps);
}

double Allowance::relative_bound(const std::string& name) const {
  const auto& config = case_.config;
  const auto dtype = case_.expected[name].scalar_type();
  const auto longest_sum = std::max(
      {config.d_in,
       case_.run.cotangent.size(-1),
       case_.run.input.numel() / config.d_in});
  // Scores of some dozens lose as many times eps, which softmax propagates.
  return 32 * epsilon_of(dtype) +
      std::sqrt(static_cast<double>(longest_sum)) * epsilon_of_sums(dtype);
}

double Allowance::scale_of_summands(const std::string& name) const {
  // The gradients of query and key are small differences of the numbers that
  // add up to the gradient of the value.
  const std::array<std::string, 3> layers = {"W_query", "W_key", "W_value"};
  auto largest = scale(name);
  for (size_t i = 0; i < 2; ++i) {
    const auto begin = name.find(layers[i]);
    if (begin == std::string::npos) {
      continue;
    }
    for (const auto& other : layers) {
      auto sibling = name;
      sibling.replace(begin, layers[i].size(), other);
      if (case_.expected.contains(sibling)) {
        largest = std::max(largest, scale(sibling));
      }
    }
  }
  return largest;
}

double Allowance::largest_of_kind(const std::string& name) const {
  double largest = 0;
  for (const auto& item : case_.expected) {
    if (kind(item.key()) == kind(name)) {
      largest = std::max(largest, largest_of(item.value()));
    }
  }
  return largest;
}

} // namespace torch_attention::tools
