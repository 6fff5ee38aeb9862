#pragma once

#include <string>

namespace torch_attention::models {

/// A tensor of a GGUF file as files of `save_pretrained` have it.
struct GgufTensorName {
  /// Empty if such files have no such tensor.
  std::string name;
  /// GPT-2's linear layers are transposed there.
  bool transposed = false;
};

/// Returns the name of the tensor `key` of a GGUF file in the files of a model
/// of this `model_type`. Throws c10::Error if the model has no such tensor.
GgufTensorName name_of_gguf_tensor(
    const std::string& model_type,
    const std::string& key);

} // namespace torch_attention::models
