#pragma once

#include <tools/comparison.h>
#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// How far the results of a kernel on a device may be from the expected
/// ones: a tolerance and the rounding of the expected ones. No result of ours
/// goes into it, so that a wrong one cannot allow itself.
class Allowance {
 public:
  /// `verification_case` must outlive the object.
  Allowance(
      const VerificationCase& verification_case,
      torch::Device device,
      Kernel kernel);

  /// Returns the size of the numbers of which a tensor is a sum. The gradient
  /// of the key bias cancels, in exact arithmetic to zero: its own size says
  /// nothing.
  double scale(const std::string& name) const;

  /// Returns the largest absolute difference that is allowed.
  double allowed(const std::string& name) const;

  /// Throws c10::Error if the archive's results differ from those in double by
  /// more than rounding can: they would allow wrong results.
  void check_rounding() const;

 private:
  Tolerance tolerance(const std::string& name) const;
  double rounding(const std::string& name) const;
  /// Returns how far steps of AdamW, none longer than lr, can lead two runs
  /// apart.
  double longest_way() const;
  /// Bounds rounding relative to the size of the summands, by sizes and dtype.
  double relative_bound(const std::string& name) const;
  double scale_of_summands(const std::string& name) const;
  double largest_of_kind(const std::string& name) const;

  const VerificationCase& case_;
  bool same_operations_;
};

} // namespace torch_attention::tools
