#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

/// Attention whose scores an `if` changes, as a mask that may be None does.
namespace torch_attention::graphs {

/// Returns whether the scores of a softmax come through an `if`.
bool comes_from_branches(torch::jit::Node* softmax);

/// Gives each branch of the `if` that the scores of a softmax come from all
/// operators of the attention, from the product of queries and keys to that
/// with the values. Returns the softmaxes of the branches. Returns none, and
/// leaves the graph as it was, where that might change results.
std::vector<torch::jit::Node*> enter_branches(
    const torch::jit::Module& module,
    const std::shared_ptr<torch::jit::Graph>& graph,
    torch::jit::Node* softmax);

} // namespace torch_attention::graphs
