#pragma once

#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// If an archive's own code differs from our module, returns the options
/// (number of heads, mask) with which both agree. Returns "" if they agree
/// already, or if the archive has recorded results, which include these
/// options.
std::string suggest_options(const VerificationCase& verification_case);

} // namespace torch_attention::tools
