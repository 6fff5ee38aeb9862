#pragma once

#include <jit/einsum.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <vector>

/// Attention in TorchScript graphs.
namespace torch_attention::graphs {

/// A factor of scores: a number that is known, or one that the graph computes.
struct Factor {
  double number = 1.0;
  /// an int, a float, or a tensor of one element; null: `number`
  torch::jit::Value* value = nullptr;
  bool divides = false;
};

/// A value that hides keys, or is added to scores.
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
  /// It has the dimensions of `AttentionNodes::view`.
  bool in_view = false;
  /// the hidden scores, or the factor of a bias; the product of all
  std::vector<Factor> factors;
};

/// Attention by single operators: softmax(factors (q k^T) + masks) v, where
/// softcap tanh(...) may be between factors and masks.
struct AttentionNodes {
  Arranged query;
  /// (..., D, S)
  Arranged transposed_key;
  Arranged value;
  /// Dimensions of the output in the order of `last`. Empty: as they are.
  std::vector<int64_t> result;
  /// Without those of the softcap.
  std::vector<Factor> factors;
  std::optional<double> softcap;
  std::vector<Mask> masks;
  /// The sizes that a view of the scores has, and those of the later view back;
  /// null: none
  torch::jit::Value* view = nullptr;
  torch::jit::Value* view_back = nullptr;
  /// dtypes that scores and weights are cast to: ints, or tensors that have
  /// them
  std::vector<torch::jit::Value*> casts;
  /// the last of them that the weights have; null: they have that of the scores
  torch::jit::Value* weights_cast = nullptr;
  /// null: none
  torch::jit::Value* dropout = nullptr;
  torch::jit::Value* training = nullptr;
  torch::jit::Node* first = nullptr;
  torch::jit::Node* softmax = nullptr;
  /// of the softmax; null: the last one
  torch::jit::Value* dim = nullptr;
  torch::jit::Node* last = nullptr;
  /// all of one block, in the order of execution, `first` and `last` included
  std::vector<torch::jit::Node*> nodes;
};

/// The outcome for a softmax.
struct Finding {
  std::optional<AttentionNodes> attention;
  /// why it is none; empty if it does not even look like it
  std::string reason;
};

/// Looks at what comes before and after a softmax.
Finding find_attention(
    const torch::jit::Module& module,
    torch::jit::Node* softmax);

} // namespace torch_attention::graphs
