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
  /// How many of the layers that the field counts are not made.
  int64_t missing_layers = 0;
};

/// Stages of layers, between which sizes change. `layer` counts through all of
/// them.
struct StageNames {
  /// The field with the numbers of layers of the stages, or these numbers if
  /// they are fixed; both are empty for models without stages.
  std::string field;
  std::vector<int64_t> fixed;
  /// The field with the number of stages; empty if there is none.
  std::string count;
  /// The number of the first stage in paths.
  int64_t first = 0;
  /// Whether each stage has twice the size of the one before.
  bool doubles = false;

  bool exist() const {
    return !field.empty() || !fixed.empty();
  }
};

/// How the attention of a model is described.
struct Family {
  /// The path of the self-attention in the model; `{}` stands for the layer, in
  /// stages for the stage and its layer. In a model with a decoder, the
  /// encoder's. Empty in models with cross-attention alone.
  std::string path;
  std::vector<Step> steps;
  SizeNames names;
  /// The size of heads if it is fixed, and there is no field with their number;
  /// otherwise 0.
  int64_t head_size = 0;
  /// The number of layers if it is fixed; otherwise 0.
  int64_t layer_count = 0;
  StageNames stages;
  /// The paths of the decoder's self-attention and cross-attention; empty if
  /// there are none.
  std::string decoder_path;
  std::string cross_path;
  SizeNames decoder_names;
  /// The path of the self-attention in a third stack, an encoder of sound;
  /// empty if there is none.
  std::string audio_path = {};
  SizeNames audio_names = {};
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
  /// The pairing of the rotary embedding of the indexer, for models with latent
  /// attention that have one; otherwise empty.
  std::string indexer;
  /// Whether some of its layers take the keys that the indexer of an earlier
  /// layer chose.
  bool has_shared_indexers = false;
  /// Whether its class reads `per_layer_config`.
  bool reads_layers = false;
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
