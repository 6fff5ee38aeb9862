#pragma once

#include <harness/case.h>

#include <vector>

namespace torch_attention::benchmarks {

/// Attention to a long past: heads that share keys, chunks of tokens, a bias of
/// each head, half precision, and decode steps of whole modules. The other is
/// LibTorch's SDPA.
std::vector<Case> grouped_cases();

} // namespace torch_attention::benchmarks
