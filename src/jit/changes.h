#pragma once

#include <jit/find_attention.h>

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

/// Tells which values of a graph are changed in place.
namespace torch_attention::graphs {

/// Returns whether a node, or one in its blocks, may change something in place,
/// whatever it is.
bool changes_something(torch::jit::Node* node);

/// Returns whether a node, or one in its blocks, switches gradients on or off,
/// or an automatic cast.
bool switches_modes(torch::jit::Node* node);

/// Returns whether a node that may run after one of `nodes` has begun, and is
/// none of them, changes in place what that one reads or, if it is not the last
/// of them, computes.
bool is_changed(
    const std::vector<torch::jit::Node*>& nodes,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases);

/// Returns the same of attention, whose queries and keys are read by its first
/// product, and whose values by the last.
bool is_changed(
    const AttentionNodes& found,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases);

} // namespace torch_attention::graphs
