#pragma once

#include <tools/comparison.h>
#include <tools/verification_case.h>

#include <torch_attention/nn/options/attention.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// One line of the table: a case on a device, computed by a kernel.
struct Verdict {
  std::string case_name;
  torch::Device device = torch::kCPU;
  Kernel kernel = Kernel::kAuto;
  /// The tensor whose difference takes the largest part of its tolerance.
  std::string worst;
  Difference difference;
  /// What its largest absolute difference may be.
  double allowed = 0;
  /// Why there is no result; empty if there is one.
  std::string error;

  bool passed() const {
    return error.empty() && difference.is_allowed();
  }
};

/// Whether a run with this kernel on this device draws the random numbers of
/// the expected one: dropout follows Python's stream only in the reference
/// kernel on the CPU.
bool is_comparable(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Loads the case's archive into our module, runs it, and compares all that is
/// expected.
Verdict verify(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Verifies archives, and all archives in folders, with every kernel on every
/// device of this machine, or on the one named. Prints the table to `out`.
/// Returns whether all passed.
bool verify_files(
    const std::vector<std::string>& paths,
    const std::string& device,
    const ArchiveOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
