#pragma once

#include <json_tree.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// The fields of attention that the configuration class of a model type of
/// `transformers` has by default, but those that are None; and under "names"
/// the model's own names of fields. Empty for a type that is not known.
Json default_fields(const std::string& model_type);

} // namespace torch_attention::weights::pretrained
