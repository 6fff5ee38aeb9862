#pragma once

#include <json_tree.h>
#include <weights/pretrained/verbs.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The data of models.json, which is compiled into the library.

namespace torch_attention::weights::pretrained {

/// The names of the fields with sizes. A configuration may have other names for
/// them (`ModelConfig::name_of`).
struct SizeNames {
  std::string size = "hidden_size";
  std::string heads = "num_attention_heads";
  std::string layers = "num_hidden_layers";
  std::string length = "max_position_embeddings";
  /// The number of layers in a second list of layers, which follow those of the
  /// first; empty if there is one list.
  std::string more_layers = {};
};

/// How the attention of a model is described.
struct Family {
  /// The path of the self-attention in the model; `{}` stands for the layer. In
  /// a model with a decoder, the encoder's.
  std::string path;
  std::vector<Step> steps;
  SizeNames names;
  /// The size of heads if it is fixed, and there is no field with their number;
  /// otherwise 0.
  int64_t head_size = 0;
  /// The paths of the decoder's self-attention and cross-attention; empty if
  /// there are none.
  std::string decoder_path;
  std::string cross_path;
  SizeNames decoder_names;
  /// Whether the stacks have separate configurations, `encoder` and `decoder`.
  bool has_own_configs = false;
  /// The flag for cross-attention; empty if all models with a `cross_path` have
  /// it.
  std::string cross_flag;

  bool has_parts() const {
    return !decoder_path.empty();
  }
};

/// The entry of a `model_type`.
struct ModelEntry {
  /// The reason why the attention is not computed; empty if it is.
  std::string refused;
  /// Set for models with `MultiHeadAttention` that do not consist of others.
  std::optional<Family> family;
  /// An object for models of several parts (multimodal.h).
  Json parts;
  /// An object for models of an encoder and a decoder (pairs.h).
  Json stacks;
  /// An object for models with one other model in them (inner.h).
  Json inner;
  /// The pairing of the rotary embedding, for models with latent attention
  /// (latent.h); otherwise empty.
  std::string latent;
  /// The fields of attention for which the configuration class of
  /// `transformers` has a default other than None; and in "names" the model's
  /// names of fields.
  Json defaults = Json::object();
};

/// Returns the entries by `model_type`. Reads the file in the first call.
const std::map<std::string, ModelEntry>& model_entries();

/// Returns the family of a type, or null if it has none.
const Family* family_of(const std::string& model_type);

/// Returns the defaults of a type; empty if it has no entry.
Json default_fields(const std::string& model_type);

} // namespace torch_attention::weights::pretrained
