#pragma once

#include <tools/verdict.h>
#include <tools/verification_case.h>

#include <torch_attention/nn/options/attention.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Returns whether a run with this kernel on this device draws the random
/// numbers of the expected run: dropout follows Python's stream only in the
/// reference kernel on the CPU.
bool is_comparable(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Loads the case's archive into our module, runs it, and compares the results
/// with all expected ones.
Verdict verify(
    const VerificationCase& verification_case,
    torch::Device device,
    Kernel kernel);

/// Verifies archives, and all archives in folders, with every kernel, on every
/// device of this machine or on the named one. Prints the table to `out`.
/// Returns whether all passed.
bool verify_files(
    const std::vector<std::string>& paths,
    const std::string& device,
    const ArchiveOptions& options,
    std::ostream& out);

} // namespace torch_attention::tools
