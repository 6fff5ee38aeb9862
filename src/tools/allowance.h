#pragma once

#include <tools/comparison.h>
#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// Determines how far a kernel's results on a device may be from the expected
/// ones: by a tolerance, and by the rounding error of the expected results. It
/// does not depend on our results, so that wrong ones cannot enlarge it.
class Allowance {
 public:
  /// `verification_case` must outlive the object.
  Allowance(
      const VerificationCase& verification_case,
      torch::Device device,
      Kernel kernel);

  /// Returns the magnitude of the summands of a tensor. The gradient of the key
  /// bias cancels to zero in exact arithmetic, so its own magnitude means
  /// nothing.
  double scale(const std::string& name) const;

  /// Returns the largest allowed absolute difference.
  double allowed(const std::string& name) const;

  /// Throws c10::Error if the archive's results differ from its results in
  /// float64 by more than rounding can explain: with them, wrong results could
  /// pass.
  void check_rounding() const;

 private:
  Tolerance tolerance(const std::string& name) const;
  double rounding(const std::string& name) const;
  /// Returns how far two runs can diverge by steps of AdamW, which are at most
  /// lr, except for rounding in float16.
  double longest_way(const std::string& name) const;
  /// Returns a bound of the rounding error relative to the summands, by sizes
  /// and dtype.
  double relative_bound(const std::string& name) const;
  double scale_of_summands(const std::string& name) const;
  double largest_of_kind(const std::string& name) const;

  const VerificationCase& case_;
  bool same_operations_;
};

} // namespace torch_attention::tools
