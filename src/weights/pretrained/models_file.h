#pragma once

#include <json_tree.h>
#include <weights/pretrained/verbs.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

// The data of models.json, which is compiled into the library.

namespace torch_attention::weights::pretrained {

/// Names of the fields of sizes; those that configurations have by other names
/// are known by these, too.
struct SizeNames {
  std::string size = "hidden_size";
  std::string heads = "num_attention_heads";
  std::string layers = "num_hidden_layers";
  std::string length = "max_position_embeddings";
};

/// How the attention of a model is described.
struct Family {
  /// The path of the attention; `{}` stands for the layer. The encoder's, if
  /// there is a decoder.
  std::string path;
  std::vector<Step> steps;
  SizeNames names;
  /// The paths of the decoder's attention to itself and to the encoder's
  /// output; empty if there is none.
  std::string decoder_path;
  std::string cross_path;
  SizeNames decoder_names;
  /// Each stack has a configuration of its own, `encoder` and `decoder`.
  bool has_own_configs = false;
  /// The field that says whether there is cross-attention; empty if all models
  /// with a path of it have it.
  std::string cross_flag;

  bool has_parts() const {
    return !decoder_path.empty();
  }
};

/// An entry of the file, that of a `model_type`.
struct ModelEntry {
  /// Why the attention is not computed; empty if it is.
  std::string refused;
  /// None if it is not computed.
  std::optional<Family> family;
  /// The fields of attention that the configuration class of `transformers` has
  /// by default, but those that are None; and under "names" the model's own
  /// names of fields.
  Json defaults = Json::object();
};

/// The entries by `model_type`, read at the first call.
const std::map<std::string, ModelEntry>& model_entries();

/// Null for a type that the file does not have, or whose attention is not
/// computed.
const Family* family_of(const std::string& model_type);

/// The defaults of an entry; empty for a type that has none.
Json default_fields(const std::string& model_type);

} // namespace torch_attention::weights::pretrained
