#pragma once

#include <torch/types.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// Sets `target`, the table of a `WindowBias`, from the attention of Swin at
/// `path` in a file. Throws c10::Error if the file has no table of its shape.
void load_window_bias(
    const std::string& file,
    const std::string& path,
    const torch::Tensor& target);

} // namespace torch_attention::weights::pretrained
