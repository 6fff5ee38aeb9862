#pragma once

#include <tools/bench/cases.h>

#include <vector>

namespace torch_attention::tools {

/// Causal attention and windows, by the option and by masks of the same keys:
/// of bool, and of numbers that hide. The other is LibTorch's SDPA.
std::vector<Case> mask_cases();

} // namespace torch_attention::tools
