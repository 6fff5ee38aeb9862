#pragma once

#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// Returns, for an archive whose own code differs from our module, with which
/// number of heads, masked or not, it agrees. Returns "" if it does not differ,
/// or is compared with recorded results, which tell both.
std::string suggest_options(const VerificationCase& verification_case);

} // namespace torch_attention::tools
