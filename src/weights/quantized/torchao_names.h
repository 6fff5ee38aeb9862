#pragma once

#include <json_tree.h>
#include <weights/quantized/group.h>

#include <map>
#include <optional>
#include <string>

namespace torch_attention::weights::quantized {

/// The tensors that torchao has taken apart for a safetensors file, by their
/// names, such as "layers.0.q_proj.weight". Each is described by a text of the
/// file's header:
///
///     {"_type": "Int8Tensor", "_data": {"block_size": [1, 64], ...},
///      "_tensor_data_names": ["qdata", "scale"]}
///
/// and its parts are called "layers.0.q_proj._weight_qdata" and so on.
class TorchaoNames {
 public:
  /// Takes `WeightFile::metadata`. Texts that describe no tensor, or one that
  /// torchao has not taken apart, are left out.
  explicit TorchaoNames(const std::map<std::string, std::string>& metadata);

  bool empty() const {
    return descriptions_.empty();
  }

  /// Returns the tensor that a key of the file is a part of, or has the name
  /// of: the module, the parameter, and the last component of the key as the
  /// field. None if there is no such tensor.
  std::optional<FieldOfGroup> field_of(const std::string& key) const;

  /// Returns the description of a tensor; null if there is none.
  const Json* find(const std::string& name) const;

 private:
  std::map<std::string, Json> descriptions_;
};

} // namespace torch_attention::weights::quantized
