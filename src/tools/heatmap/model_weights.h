#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

namespace torch_attention::tools {

/// The tensors of a folder that `save_pretrained` wrote, and the steps of
/// models by them. All results are float32.
class ModelWeights {
 public:
  /// Names are below what comes before `anchor` in the name that ends with it:
  /// "bert." for "embeddings.word_embeddings.weight". Throws c10::Error if
  /// there is none. Values stay in the files until they are used.
  ModelWeights(const std::string& folder, const std::string& anchor);

  bool contains(const std::string& name) const;

  /// Throws c10::Error if there is none of this name.
  torch::Tensor get(const std::string& name) const;

  /// Returns the rows of a table, (T) -> (1, T, C). Throws c10::Error that
  /// names an index that it does not have.
  torch::Tensor rows(const std::string& name, const torch::Tensor& indices)
      const;

  /// x (..., in) -> (..., out), with the bias if there is one.
  torch::Tensor linear(const std::string& name, const torch::Tensor& x) const;

  /// `linear` by a weight (in, out), as GPT-2 has it.
  torch::Tensor transposed_linear(
      const std::string& name,
      const torch::Tensor& x) const;

  /// The layer norm `name`, whose weights may be called gamma and beta.
  torch::Tensor layer_norm(
      const std::string& name,
      const torch::Tensor& x,
      double eps) const;

 private:
  const torch::Tensor* find(const std::string& name) const;

  std::string folder_;
  std::string prefix_;
  torch::OrderedDict<std::string, torch::Tensor> tensors_;
};

/// Returns x after the activation that configurations call "gelu", "silu", ...
/// Throws c10::Error for an unknown one.
torch::Tensor activate(const std::string& name, const torch::Tensor& x);

} // namespace torch_attention::tools
