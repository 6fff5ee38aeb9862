#pragma once

#include <json_tree.h>

#include <map>
#include <string>

// The data of models.json, which is compiled into the library.

namespace torch_attention::weights::pretrained {

/// An entry of the file, that of a `model_type`.
struct ModelEntry {
  /// Why the attention is not computed; empty if it is.
  std::string refused;
  /// The fields of attention that the configuration class of `transformers` has
  /// by default, but those that are None; and under "names" the model's own
  /// names of fields.
  Json defaults = Json::object();
};

/// The entries by `model_type`, read at the first call.
const std::map<std::string, ModelEntry>& model_entries();

/// The defaults of an entry; empty for a type that has none.
Json default_fields(const std::string& model_type);

} // namespace torch_attention::weights::pretrained
