#pragma once

#include <jit/einsum.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

/// Attention in TorchScript graphs.
namespace torch_attention::graphs {

/// A factor of scores: a number, or a value of the graph that is one, a float,
/// an int or a tensor of one element.
struct Factor {
  double number = 1.0;
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
    kAdded,
  } kind = Kind::kHides;
  /// known to hide just what comes later
  bool causal = false;
  /// what hidden scores become, before `factor`
  double fill = 0.0;
  /// product of the constant factors of the scores that come after it
  double factor = 1.0;
};

/// Attention by single operators: softmax(factors (q k^T) + masks) v, where
/// softcap tanh(...) may be between factors and masks.
struct AttentionNodes {
  Arranged query;
  /// (..., D, S)
  Arranged transposed_key;
  Arranged value;
  /// Dimensions of the output in the order of `last`. Empty: the same.
  std::vector<int64_t> result;
  /// Number of dimensions of the scores, if it is known.
  std::optional<int64_t> rank;
  /// Without those of the softcap.
  std::vector<Factor> factors;
  std::optional<double> softcap;
  std::vector<Mask> masks;
  /// null: none
  torch::jit::Value* dropout = nullptr;
  /// null: always
  torch::jit::Value* training = nullptr;
  torch::jit::Node* first = nullptr;
  torch::jit::Node* softmax = nullptr;
  torch::jit::Node* last = nullptr;
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
