#pragma once

#include <torch_attention/weights/load.h>

#include <weights/files/weight_file.h>
#include <weights/plan.h>

#include <vector>

namespace torch_attention::weights {

/// Gives every tensor of `module` the device and dtype of the options, and the
/// assigned ones their values: all of them or, if memory runs out, none.
///
/// All steps that can fail come before the first change. On the CPU, values are
/// then copied from the file to their place; for another device or dtype they
/// are made beside the old ones.
void copy_all(
    torch::nn::Module& module,
    const std::vector<Assignment>& assignments,
    const LoadOptions& options,
    const files::WeightFile& file);

} // namespace torch_attention::weights
