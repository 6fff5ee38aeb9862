#pragma once

#include <harness/case.h>

#include <vector>

namespace torch_attention::benchmarks {

/// Causal attention and windows, by the option and by masks of the same keys:
/// of bool, and of numbers that hide. The other is LibTorch's SDPA.
std::vector<Case> mask_cases();

} // namespace torch_attention::benchmarks
