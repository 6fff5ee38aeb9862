#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <initializer_list>
#include <optional>

/// Facts about the values of a graph that are known before it runs.
namespace torch_attention::graphs {

/// Returns whether a node is one of these operators.
bool is(const torch::jit::Node* node, std::initializer_list<const char*> names);

/// Returns the object or attribute behind a value if it is `module`, an
/// attribute of it, or an attribute of one of its submodules.
std::optional<c10::IValue> attribute_behind(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

/// Returns whether an operator multiplies matrices.
bool is_product(const torch::jit::Node* node);

/// Returns whether an operator reshapes a tensor to the sizes in its second
/// input.
bool is_view(const torch::jit::Node* node);

bool is_tensor(const torch::jit::Value* value);

/// Returns the number of dimensions of a view, if the graph determines it.
std::optional<int64_t> rank_of_view(const torch::jit::Node* node);

/// Returns the value of a constant number or a constant tensor of one element.
std::optional<double> number_of(const torch::jit::Value* value);

/// Returns whether a value is a number, or a tensor that surely holds a single
/// one because it is computed from sizes, constants and attributes of `module`.
bool is_number(
    const torch::jit::Module& module,
    const torch::jit::Value* value);

} // namespace torch_attention::graphs
