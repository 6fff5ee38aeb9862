#pragma once

#include <harness/case.h>

#include <vector>

namespace torch_attention::benchmarks {

/// Returns all cases in the table's order.
std::vector<Case> all_cases();

} // namespace torch_attention::benchmarks
