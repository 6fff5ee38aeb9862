#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace torch_attention::models {

/// The tensors of a folder, and which of them the model has taken.
class FolderWeights {
 public:
  /// Reads the folder's safetensors or PyTorch files, sharded too, or a GGUF
  /// file, whose tensors get the names of a folder's. Values stay in the files
  /// until they are copied.
  explicit FolderWeights(const std::string& folder);

  /// Returns the part before `name` in the first name that ends with it:
  /// "transformer." for "wte.weight". Throws c10::Error if there is none.
  std::string prefix_of(const std::string& name) const;

  bool contains(const std::string& name) const;

  /// Returns the shape of a matrix. Throws c10::Error if there is none.
  std::vector<int64_t> matrix_sizes(const std::string& name) const;

  /// Marks the tensor `head`, if there is one, as taken. Throws c10::Error if
  /// it has other numbers than `embedding`, to which the configuration ties it.
  void check_tied(const std::string& head, const std::string& embedding);

  /// Copies a tensor, or its transpose, into a parameter, once: its values are
  /// given back. A layer norm's may be called gamma and beta in the file.
  /// Throws c10::Error if there is none, or its shape is another.
  void copy(
      const std::string& name,
      const torch::Tensor& parameter,
      bool transposed = false);

  /// Marks all tensors whose names begin so as taken, and gives their values
  /// back.
  void take_all(const std::string& start);

  /// Throws c10::Error that names a tensor that nothing took, of those whose
  /// names begin so; of all in a GGUF file, which has nothing but the model.
  void check_all_taken(const std::string& start) const;

 private:
  struct InGguf {
    std::string key;
    bool transposed = false;
  };

  /// Returns the name in the file, or an empty one.
  std::string stored_name(const std::string& name) const;
  /// Returns a tensor without its values, if it is of a GGUF file.
  const torch::Tensor& get(const std::string& name) const;
  /// Returns a tensor with its values.
  torch::Tensor value_of(const std::string& name) const;
  void list_gguf();
  /// Values that were computed of a quantized tensor take memory.
  void take(const std::string& key);

  std::string folder_;
  torch::OrderedDict<std::string, torch::Tensor> tensors_;
  /// Where the tensors of a GGUF file are, by their names in a folder.
  std::unordered_map<std::string, InGguf> in_gguf_;
  std::unordered_set<std::string> taken_;
};

} // namespace torch_attention::models
