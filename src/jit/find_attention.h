#pragma once

#include <jit/einsum.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <vector>

/// Attention in TorchScript graphs.
namespace torch_attention::graphs {

/// A factor of the scores: a known number, or one that the graph computes.
struct Factor {
  double number = 1.0;
  /// an int, a float, or a tensor of one element; null if `number` is the
  /// factor
  torch::jit::Value* value = nullptr;
  bool divides = false;
};

/// A mask that hides keys, or a bias that is added to scores.
struct Mask {
  torch::jit::Value* value = nullptr;
  enum class Kind {
    /// bool, true hides
    kHides,
    /// bool, true attends
    kAttends,
    /// added to the scores
    kBias,
  } kind = Kind::kHides;
  /// Whether it has the dimensions of `AttentionNodes::view`.
  bool in_view = false;
  /// Their product is the fill value of a mask, or the factor of a bias.
  std::vector<Factor> factors;
};

/// Attention computed by single operators: softmax(factors (q k^T) + masks) v,
/// optionally with softcap tanh(...) between factors and masks.
struct AttentionNodes {
  Arranged query;
  /// (..., D, S)
  Arranged transposed_key;
  Arranged value;
  /// The permutation of (..., T, E) that `last` returns. Empty: not permuted.
  std::vector<int64_t> result;
  /// The factors of q k^T. The factor after tanh is `softcap`.
  std::vector<Factor> factors;
  std::optional<double> softcap;
  std::vector<Mask> masks;
  /// The sizes of a view of the scores, and of the later view back; null if
  /// there is none.
  torch::jit::Value* view = nullptr;
  torch::jit::Value* view_back = nullptr;
  /// dtypes that scores and weights are cast to: ints, or tensors with these
  /// dtypes
  std::vector<torch::jit::Value*> casts;
  /// the last cast of the weights; null if they have the dtype of the scores
  torch::jit::Value* weights_cast = nullptr;
  /// null if there is no dropout
  torch::jit::Value* dropout = nullptr;
  torch::jit::Value* training = nullptr;
  torch::jit::Node* first = nullptr;
  torch::jit::Node* softmax = nullptr;
  /// dimension of the softmax; null if it is known to be the last one
  torch::jit::Value* dim = nullptr;
  torch::jit::Node* last = nullptr;
  /// all nodes, in one block and in the order of execution, with `first` and
  /// `last`
  std::vector<torch::jit::Node*> nodes;
};

/// The result of `find_attention`.
struct Finding {
  std::optional<AttentionNodes> attention;
  /// why it is not supported; empty if it does not even resemble attention
  std::string reason;
};

/// Finds the attention that a softmax is part of.
Finding find_attention(
    const torch::jit::Module& module,
    torch::jit::Node* softmax);

} // namespace torch_attention::graphs
