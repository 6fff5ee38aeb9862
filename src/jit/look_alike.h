#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torch_attention::graphs {

/// Returns whether a tensor follows from a product of two tensors by operators
/// that scores may go through in our own attention; `through_branches`: or
/// through an `if` as well.
bool leads_to_product(torch::jit::Value* scores, bool through_branches = false);

/// Returns whether a softmax has a product of two tensors before it and one
/// after it, whatever is between.
bool looks_like_attention(torch::jit::Node* softmax);

} // namespace torch_attention::graphs
