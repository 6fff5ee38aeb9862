#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <vector>

namespace torch_attention::graphs {

/// Maps original values to their copies.
using Copies = std::unordered_map<torch::jit::Value*, torch::jit::Value*>;

/// Copies nodes, in their order, to the insertion point, and adds their outputs
/// to `copies`. The new nodes read values that are in `copies` already.
///
/// A copied softmax reads its scores through `alias`. TorchScript's symbolic
/// differentiation does not propagate gradients through a softmax with another
/// dtype. It has no formula for `alias`, so the alias keeps the softmax out of
/// the same subgraph as the scores.
void insert_copies(
    torch::jit::Graph& graph,
    const std::vector<torch::jit::Node*>& nodes,
    Copies& copies);

} // namespace torch_attention::graphs
