#pragma once

#include <tools/comparison.h>
#include <tools/verification_case.h>

#include <map>
#include <string>

namespace torch_attention::tools {

/// What the results of a kernel on a device may differ by from the expected
/// ones.
class Allowance {
 public:
  /// Runs the case in double, unless the kernel does Python's operations.
  /// `verification_case` must outlive the object.
  Allowance(
      const VerificationCase& verification_case,
      torch::Device device,
      Kernel kernel);

  /// The size of the numbers of which a tensor is a sum. The gradient of the
  /// key bias cancels, in exact arithmetic to zero: its own size says nothing.
  double scale(const std::string& name) const;

  /// The largest absolute difference that is allowed.
  double allowed(const std::string& name) const;

 private:
  Tolerance tolerance(const std::string& name) const;
  void measure_noise();

  const VerificationCase& case_;
  bool same_operations_;
  /// How far Python's rounding takes its results from those in double,
  /// relative to the scale, by kind of tensor.
  std::map<std::string, double> noise_;
};

} // namespace torch_attention::tools
