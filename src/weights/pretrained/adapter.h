#pragma once

#include <string>

namespace torch_attention::weights::pretrained {

/// Throws c10::Error if the folder contains an adapter (PEFT), which
/// `transformers` would apply to the model, unless `merged`, the folder of an
/// adapter that is merged, is given. `path` is the folder or its `config.json`.
void check_no_adapter(const std::string& path, const std::string& merged = "");

} // namespace torch_attention::weights::pretrained
