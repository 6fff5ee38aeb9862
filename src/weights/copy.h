#pragma once

#include <torch_attention/weights/load.h>

#include <weights/files/weight_file.h>
#include <weights/plan.h>

#include <vector>

namespace torch_attention::weights {

/// Gives every tensor of `module` the device and dtype of the options, and the
/// assigned ones their values. If memory runs out, the module does not change.
///
/// All steps that can fail precede the first change. On the CPU, values are
/// copied from the file into the tensor; for another device or dtype into a new
/// tensor, which then replaces the old one.
void copy_all(
    torch::nn::Module& module,
    const std::vector<Assignment>& assignments,
    const LoadOptions& options,
    const files::WeightFile& file);

} // namespace torch_attention::weights
