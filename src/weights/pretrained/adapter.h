#pragma once

#include <string>

namespace torch_attention::weights::pretrained {

/// Throws c10::Error if an adapter (PEFT) lies in the folder, which
/// `transformers` would apply to the model in it, or instead of a model. `path`
/// is the folder, or its `config.json`.
void check_no_adapter(const std::string& path);

} // namespace torch_attention::weights::pretrained
