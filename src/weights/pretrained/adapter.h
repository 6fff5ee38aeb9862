#pragma once

#include <string>

namespace torch_attention::weights::pretrained {

/// Throws c10::Error if the folder contains an adapter (PEFT), which
/// `transformers` would apply to the model. `path` is the folder or its
/// `config.json`.
void check_no_adapter(const std::string& path);

} // namespace torch_attention::weights::pretrained
