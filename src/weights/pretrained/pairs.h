#pragma once

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/multimodal.h>

#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// An encoder and a decoder that are whole models, each with a configuration of
/// its own.
struct Pair {
  /// The object that has the encoder's configuration; null if the decoder alone
  /// is computed.
  const char* encoder_field;
  const char* decoder_field;
  /// The `model_type` of each, where its configuration does not say it.
  const char* encoder_type = "";
  const char* decoder_type = "";
  /// The beginning of their paths.
  const char* encoder_root = "encoder.";
  const char* decoder_root = "decoder.";

  bool has_encoder() const {
    return encoder_field != nullptr;
  }
};

/// None for all other models.
const Pair* find_pair(const std::string& model_type);

/// The known values of `model_type`.
std::vector<std::string> pair_types();

/// The stack of a pair that is meant. Throws c10::Error if it has no such
/// stack, or none is given and there are two.
ModelPart stack_of(ModelConfig& whole, const Pair& pair, PretrainedPart part);

} // namespace torch_attention::weights::pretrained
