#pragma once

#include <tools/verification_case.h>

#include <string>

namespace torch_attention::tools {

/// For an archive whose own code differs from our module: says with which
/// number of heads, masked or not, it agrees. Empty if it does not differ or is
/// compared with recorded results, which tell both.
std::string suggest_options(const VerificationCase& verification_case);

} // namespace torch_attention::tools
