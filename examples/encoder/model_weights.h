#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <string>
#include <unordered_set>

namespace encoder {

/// The tensors of a folder, and which of them the model has taken.
class ModelWeights {
 public:
  /// Reads the folder's safetensors or PyTorch files. Values stay in the files
  /// until they are copied. Names have no part before "embeddings.".
  explicit ModelWeights(const std::string& folder);

  /// Returns the shape of a matrix. Throws c10::Error if there is none.
  std::vector<int64_t> matrix_sizes(const std::string& name) const;

  /// Copies a tensor. Throws c10::Error if there is none, or its shape is
  /// another.
  void copy(const std::string& name, torch::Tensor parameter);

  /// Marks tensors as taken whose names begin so: our library loads attention.
  void take_all(const std::string& start);

  /// Throws c10::Error that names a tensor of embeddings and layers that the
  /// model has no place for.
  void check_all_taken() const;

 private:
  const torch::Tensor& get(const std::string& name) const;

  std::string folder_;
  std::string prefix_;
  torch::OrderedDict<std::string, torch::Tensor> tensors_;
  std::unordered_set<std::string> taken_;
};

} // namespace encoder
