#pragma once

#include <tools/verdict.h>
#include <tools/verification_case.h>

#include <torch_attention/nn/options/attention.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Returns whether a run with this kernel on this device draws the random
/// numbers of the expected run. With dropout, only the reference kernel on the
/// CPU uses Python's random stream.
bool is_comparable(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Runs our module with the archive's weights, and compares its results with
/// all expected ones.
Verdict verify(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Verifies archives, and all archives in folders, with every kernel, on every
/// device of this machine or on the named one. Prints a table to `out`. Returns
/// whether all passed.
bool verify_files(
    const std::vector<std::string>& paths,
    const std::string& device,
    const ArchiveOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
