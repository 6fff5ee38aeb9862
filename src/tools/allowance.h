#pragma once

#include <tools/comparison.h>
#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// Says how far a kernel's results on a device may be from the expected ones:
/// by a tolerance and the rounding of the expected results. It uses no result
/// of ours, so that a wrong one cannot allow itself.
class Allowance {
 public:
  /// `verification_case` must outlive the object.
  Allowance(
      const VerificationCase& verification_case,
      torch::Device device,
      Kernel kernel);

  /// Returns the size of the numbers that are summed to give a tensor. The
  /// gradient of the key bias cancels, in exact arithmetic to zero, so that its
  /// own size says nothing.
  double scale(const std::string& name) const;

  /// Returns the largest absolute difference that is allowed.
  double allowed(const std::string& name) const;

  /// Throws c10::Error if the archive's results differ from those in double by
  /// more than rounding can explain: such results would allow wrong ones.
  void check_rounding() const;

 private:
  Tolerance tolerance(const std::string& name) const;
  double rounding(const std::string& name) const;
  /// Returns how far two runs can diverge by steps of AdamW, none longer than
  /// lr, but for what float16 rounds.
  double longest_way(const std::string& name) const;
  /// Returns a bound of the rounding relative to the summands, by sizes and
  /// dtype.
  double relative_bound(const std::string& name) const;
  double scale_of_summands(const std::string& name) const;
  double largest_of_kind(const std::string& name) const;

  const VerificationCase& case_;
  bool same_operations_;
};

} // namespace torch_attention::tools
