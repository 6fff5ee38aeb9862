#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torch_attention::graphs {

/// Returns whether a tensor is computed from a product by operators that are
/// allowed between the product and the softmax; with `through_branches` also
/// through an `if`.
bool leads_to_product(torch::jit::Value* scores, bool through_branches = false);

/// Returns whether a softmax has a product of two computed tensors before it
/// and one after it, with any operators between.
bool looks_like_attention(torch::jit::Node* softmax);

} // namespace torch_attention::graphs
