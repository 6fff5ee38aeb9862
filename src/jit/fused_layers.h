#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/types.h>

namespace torch_attention::graphs {

/// Takes apart the operator of a whole layer, which LibTorch's modules call
/// outside of training without gradients, into its steps, attention among them;
/// with a mask or nested tensors the layer is computed as before. Returns
/// whether it did.
bool take_apart(torch::jit::Node* node);

} // namespace torch_attention::graphs
