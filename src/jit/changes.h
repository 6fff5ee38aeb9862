#pragma once

#include <jit/find_attention.h>

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

/// Finds values of a graph that are changed in place.
namespace torch_attention::graphs {

/// Returns whether a node, or one in its blocks, may change any value in place.
bool changes_something(torch::jit::Node* node);

/// Returns whether a node, or one in its blocks, switches gradients or autocast
/// on or off.
bool switches_modes(torch::jit::Node* node);

/// Returns whether a node other than `nodes`, which may run after one of them
/// has begun, changes in place what that one reads or, unless it is the last of
/// them, computes.
bool is_changed(
    const std::vector<torch::jit::Node*>& nodes,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases);

/// Returns whether a node may change in place what the nodes of an attention
/// still read. Its first product reads queries and keys, its last one the
/// values.
bool is_changed(
    const AttentionNodes& found,
    const torch::jit::Module& module,
    torch::jit::AliasDb& aliases);

} // namespace torch_attention::graphs
