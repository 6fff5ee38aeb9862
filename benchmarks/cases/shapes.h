#pragma once

#include <harness/case.h>

#include <vector>

namespace torch_attention::benchmarks {

/// Causal attention alone by shape and dtype, forward and with its backward
/// pass. The other is LibTorch's SDPA.
std::vector<Case> shape_cases();

} // namespace torch_attention::benchmarks
