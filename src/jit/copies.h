#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <vector>

namespace torch_attention::graphs {

/// The values of copies by those of the originals.
using Copies = std::unordered_map<torch::jit::Value*, torch::jit::Value*>;

/// Copies nodes, in their order, to the insertion point, and notes the copies.
/// They read the copies of what is noted already.
///
/// A softmax reads its scores through `alias`: TorchScript's own gradients of
/// operators that it finds together do not go back through a softmax of another
/// dtype, and it has none of `alias`.
void insert_copies(
    torch::jit::Graph& graph,
    const std::vector<torch::jit::Node*>& nodes,
    Copies& copies);

} // namespace torch_attention::graphs
