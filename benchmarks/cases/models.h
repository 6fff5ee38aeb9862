#pragma once

#include <harness/case.h>

#include <vector>

namespace torch_attention::benchmarks {

/// The attention of models: padded batches, cross-attention, heads of a size of
/// their own, norms with rotary embedding, latent vectors. The others are the
/// same work by LibTorch's operators.
std::vector<Case> model_cases();

} // namespace torch_attention::benchmarks
