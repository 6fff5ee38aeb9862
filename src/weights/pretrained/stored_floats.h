#pragma once

#include <weights/files/weight_file.h>

#include <torch/types.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// Returns the tensor `name` of the part of a file below `path`, after its
/// check. Throws c10::Error unless it is floating-point and of these sizes.
const torch::Tensor& stored_floats(
    const files::WeightFile& below,
    const std::string& path,
    const std::string& name,
    torch::IntArrayRef sizes);

} // namespace torch_attention::weights::pretrained
