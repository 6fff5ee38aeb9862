#include <tools/allowance.h>

#include <algorithm>
#include <cmath>

namespace torch_attention::tools {

namespace {

/// output, gradient or trained: the first word of a name.
std::string kind(const std::string& name) {
  return name.substr(0, name.find(' '));
}

/// The name of the weight that belongs to a bias; empty for other tensors.
std::string weight_of_bias(const std::string& name) {
  const std::string bias = ".bias";
  const auto dot = name.rfind('.');
  return dot != std::string::npos && name.substr(dot) == bias
      ? name.substr(0, dot) + ".weight"
      : "";
}

} // namespace

Allowance::Allowance(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel)
    : case_(verification_case),
      same_operations_(device.is_cpu() && kernel == Kernel::kReference) {
  // Under dropout the run in double would draw other weights.
  if (!same_operations_ && !case_.has_dropout()) {
    measure_noise();
  }
}

double Allowance::scale(const std::string& name) const {
  const auto largest = largest_of(case_.expected[name]);
  const auto* weight = case_.expected.find(weight_of_bias(name));
  return weight == nullptr ? largest : std::max(largest, largest_of(*weight));
}

double Allowance::allowed(const std::string& name) const {
  // Another order of operations may be as far on the other side of the exact
  // result, and a little more.
  const auto noise = noise_.find(kind(name));
  const auto of_noise =
      noise == noise_.end() ? 0.0 : 3 * noise->second * scale(name);
  const auto allowed = tolerance(name).allowed(scale(name)) + of_noise;
  const auto parameter = parameter_of_trained(name);
  if (parameter.empty()) {
    return allowed;
  }
  // A gradient that differs within its tolerance moves a step of AdamW by at
  // most lr / eps times that.
  const auto gradient = gradient_name(parameter);
  const auto& adamw = case_.run.adamw;
  return allowed +
      static_cast<double>(adamw.steps) * adamw.lr / adamw.eps *
      tolerance(gradient).allowed(scale(gradient));
}

Tolerance Allowance::tolerance(const std::string& name) const {
  return tolerance_of(case_.expected[name].scalar_type(), same_operations_);
}

void Allowance::measure_noise() {
  auto in_double = case_.run;
  in_double.input = in_double.input.to(torch::kDouble);
  in_double.cotangent = in_double.cotangent.to(torch::kDouble);
  const auto exact =
      run_ours(case_, in_double, torch::kCPU, Kernel::kReference);
  for (const auto& item : case_.expected) {
    const auto* found = exact.find(item.key());
    if (found == nullptr) {
      continue;
    }
    const auto difference =
        compare(item.value(), *found, scale(item.key()), /*allowed=*/1);
    // What is expected may hold NaN or have a wrong shape: that must not allow
    // everything.
    if (std::isfinite(difference.relative)) {
      auto& noise = noise_[kind(item.key())];
      noise = std::max(noise, difference.relative);
    }
  }
}

} // namespace torch_attention::tools
