#pragma once

#include <tools/training_run.h>

#include <torch/csrc/jit/api/module.h>

#include <map>
#include <string>

namespace torch_attention::tools {

/// Returns the module at a dotted path of a TorchScript archive, on the CPU.
torch::jit::Module load_code(
    const std::string& archive,
    const std::string& prefix);

/// Returns parameters and buffers by their names.
StateDict tensors_of(const torch::jit::Module& module);

/// Runs the module's own code and trains it, which changes the module.
StateDict run_code(torch::jit::Module module, const TrainingRun& run);

/// Returns, by name, how far the results of an archive's own code are from its
/// results in float64. Empty if the code does not run in float64, for example
/// because it names another dtype.
std::map<std::string, double> measure_rounding(
    const std::string& archive,
    const std::string& prefix,
    const TrainingRun& run);

} // namespace torch_attention::tools
