#pragma once

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/multimodal.h>

#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// One of two stacks of layers, which is a model with its own configuration.
struct Stack {
  /// The `model_type`, if its configuration has none.
  std::string type;
  /// The field with its configuration; empty for the outer one.
  std::string field;
  /// The beginning of its paths in files.
  std::string root;
  /// The fields that its configuration has by default in this model, where they
  /// differ from those of its class.
  Json defaults;
  /// Whether its class is given, whatever `model_type` it has.
  bool is_fixed = false;
};

/// A model of two other models: `stacks` of an entry of models.json.
struct Pair {
  /// None if only the decoder is computed.
  std::optional<Stack> encoder;
  Stack decoder;
};

/// Returns the pair of this type, or null.
const Pair* find_pair(const std::string& model_type);

/// Returns the known values of `model_type`.
std::vector<std::string> pair_types();

/// Returns a stack of a pair. Throws c10::Error if it has no such stack, or if
/// `part` is kAuto and there are two.
ModelPart stack_of(ModelConfig& outer, const Pair& pair, PretrainedPart part);

} // namespace torch_attention::weights::pretrained
