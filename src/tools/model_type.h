#pragma once

#include <string>

namespace torch_attention::tools {

/// Returns the `model_type` of the configuration in a folder; empty if there is
/// no readable one.
std::string model_type_in(const std::string& path);

/// Returns whether `attention_from_pretrained` and similar functions know a
/// type.
bool is_known_type(const std::string& model_type);

} // namespace torch_attention::tools
