#pragma once

#include <weights/pretrained/describe.h>

#include <map>
#include <string>

// The places of attention in models, and the functions that describe it.

namespace torch_attention::weights::pretrained {

/// Names of the fields of sizes; those that configurations have by other names
/// are known by these, too.
struct SizeNames {
  const char* size = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* layers = "num_hidden_layers";
  const char* length = "max_position_embeddings";
};

using Describe = void (*)(Layer&);

/// Models that are described in the same way.
struct Family {
  /// The path of the attention; `{}` stands for the layer. The encoder's, if
  /// there is a decoder.
  const char* path;
  Describe describe;
  SizeNames names = {};
  /// The paths of the decoder's attention to itself and to the encoder's
  /// output.
  const char* decoder_path = nullptr;
  const char* cross_path = nullptr;
  SizeNames decoder_names = {};
  /// Each stack has a configuration of its own, `encoder` and `decoder`.
  bool has_own_configs = false;
  /// The field that says whether there is cross-attention, if not all models
  /// have it.
  const char* cross_flag = nullptr;

  bool has_parts() const {
    return decoder_path != nullptr;
  }
};

/// All of them, by `model_type`.
const std::map<std::string, Family>& families();

} // namespace torch_attention::weights::pretrained
