#pragma once

#include <torch/types.h>

#include <string>

namespace torch_attention::models {

/// Returns x after the activation that configurations call "gelu", "silu", ...
/// Throws c10::Error for an unknown one.
torch::Tensor activate(const std::string& name, const torch::Tensor& x);

/// Throws c10::Error unless `activate` knows the name.
void check_activation(const std::string& name);

} // namespace torch_attention::models
