#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::graphs {

/// A tensor of the graph whose dimensions are to be permuted.
struct Arranged {
  torch::jit::Value* value = nullptr;
  /// For each dimension its number in `value`, or -1 for a new one of size 1.
  /// Empty: not permuted.
  std::vector<int64_t> order;
};

/// A product of two tensors by torch.einsum, as it occurs in attention.
struct EinsumProduct {
  /// (..., T, K) and (..., K, S), summed over K
  Arranged left;
  Arranged right;
  /// For each dimension of the result its number in the product (..., T, S).
  /// Empty: not permuted.
  std::vector<int64_t> result;
  int64_t rank = 0;
};

/// Returns the product of queries and keys, (..., T, S): `left` is the query,
/// `right` is the transposed key. Returns nothing for another kind of einsum.
std::optional<EinsumProduct> scores_of_einsum(const torch::jit::Node* node);

/// Returns the product of `weights` (..., T, S), which is `left`, with the
/// values. Returns nothing for another kind of einsum.
std::optional<EinsumProduct> output_of_einsum(
    const torch::jit::Node* node,
    const torch::jit::Value* weights);

} // namespace torch_attention::graphs
