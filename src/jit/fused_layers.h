#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/types.h>

namespace torch_attention::graphs {

/// Replaces the operator of a whole layer, which LibTorch's modules call in
/// evaluation without gradients, by its steps, attention among them. Nested
/// tensors, and calls that return weights, still go to the operator. Returns
/// whether the node was such an operator.
bool take_apart(torch::jit::Node* node);

} // namespace torch_attention::graphs
