#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

/// Attention whose scores pass through an `if`, as with a mask that may be
/// None.
namespace torch_attention::graphs {

/// Returns whether the scores of a softmax come through an `if`.
bool comes_from_branches(torch::jit::Node* softmax);

/// Copies all operators of an attention, from the product of queries and keys
/// to the product with the values, into each branch of the `if` that the scores
/// of a softmax come from. Returns the softmaxes of the branches. Returns none,
/// and does not change the graph, if the copies might change results.
std::vector<torch::jit::Node*> enter_branches(
    const torch::jit::Module& module,
    const std::shared_ptr<torch::jit::Graph>& graph,
    torch::jit::Node* softmax);

} // namespace torch_attention::graphs
