#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::graphs {

/// A tensor of the graph with its dimensions in another order.
struct Arranged {
  torch::jit::Value* value = nullptr;
  /// Dimension of `value`, or -1 for one of size 1. Empty: as it is.
  std::vector<int64_t> order;
};

/// A product by torch.einsum of two tensors, as attention has it.
struct EinsumProduct {
  /// (..., T, K) and (..., K, S), K is summed over
  Arranged left;
  Arranged right;
  /// Dimensions of the product (..., T, S) in the order of the result. Empty:
  /// the same.
  std::vector<int64_t> result;
  int64_t rank = 0;
};

/// Returns the product of scores, (..., T, S): the query is `left`, the
/// transposed key is `right`. Nothing if the einsum is something else.
std::optional<EinsumProduct> scores_of_einsum(const torch::jit::Node* node);

/// Returns the product of `weights` (..., T, S), which is `left`, and values.
/// Nothing if the einsum is something else.
std::optional<EinsumProduct> output_of_einsum(
    const torch::jit::Node* node,
    const torch::jit::Value* weights);

} // namespace torch_attention::graphs
