#pragma once

#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// Sets the number of heads with which our module agrees with an archive's own
/// code, if the case has none. Returns a remark that names it, or "". If none
/// agrees, it is set to one that `suggest_options` says more about.
///
/// Throws c10::Error if several agree, as with one token.
std::string find_num_heads(VerificationCase& verification_case);

/// If an archive's own code differs from our module, returns the options
/// (number of heads, mask) with which both agree. Returns "" if they agree
/// already, or if the archive has recorded results, which include these
/// options.
std::string suggest_options(const VerificationCase& verification_case);

} // namespace torch_attention::tools
