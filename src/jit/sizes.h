#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torch_attention::graphs {

/// Lets readers of the sizes of a product of batches read those of its
/// operands, so that scores have no other reader than attention.
void read_sizes_of_operands(torch::jit::Graph& graph);

} // namespace torch_attention::graphs
