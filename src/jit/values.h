#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <initializer_list>
#include <optional>

/// Tells what is known of the values of a graph before it runs.
namespace torch_attention::graphs {

/// Returns whether a node is one of the operators that are named.
bool is(const torch::jit::Node* node, std::initializer_list<const char*> names);

/// Returns what a value stands for if it is `module`, one of its attributes, or
/// one of theirs.
std::optional<c10::IValue> attribute_behind(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

/// Returns whether an operator multiplies matrices.
bool is_product(const torch::jit::Node* node);

/// Returns whether an operator gives a tensor other sizes, its second input.
bool is_view(const torch::jit::Node* node);

/// Returns whether a value is a tensor.
bool is_tensor(const torch::jit::Value* value);

/// Returns how many sizes a view gives, if the graph tells it.
std::optional<int64_t> rank_of_view(const torch::jit::Node* node);

/// Returns the number that a constant is, or a constant tensor of one element.
std::optional<double> number_of(const torch::jit::Value* value);

/// Returns whether a value is a number, or a tensor that holds just one because
/// it follows from sizes, constants and attributes of `module`.
bool is_number(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

} // namespace torch_attention::graphs
