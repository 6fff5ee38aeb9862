#pragma once

#include <torch_attention/weights/pretrained.h>
#include <weights/pretrained/multimodal.h>

#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// A model around another one, of which alone the attention is computed:
/// `inner` of an entry of models.json.
struct Inner {
  /// The `model_type`, if its configuration has none.
  std::string type;
  /// The field with its configuration.
  std::string field;
  /// A substring of its paths in files, if other paths have the same end.
  std::string within;
  /// Whether its class is given, whatever `model_type` it has.
  bool is_fixed = false;
};

/// Returns the model in this type, or null.
const Inner* find_inner(const std::string& model_type);

/// Returns the known values of `model_type`.
std::vector<std::string> inner_types();

/// Returns the inner model. Throws c10::Error if it has no such part.
ModelPart model_in(ModelConfig& outer, const Inner& inner, PretrainedPart part);

} // namespace torch_attention::weights::pretrained
