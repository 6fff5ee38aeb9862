#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torch_attention::graphs {

/// Replaces reads of the sizes of batched products by reads of the sizes of
/// their operands, so that only attention reads the scores.
void read_sizes_of_operands(torch::jit::Graph& graph);

} // namespace torch_attention::graphs
