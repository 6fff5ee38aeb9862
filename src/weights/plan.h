#pragma once

#include <torch_attention/weights/load.h>

#include <weights/files/weight_file.h>
#include <weights/layouts/map.h>

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace torch_attention::weights {

/// A tensor of the module, and the source of its new values.
struct Assignment {
  torch::Tensor target;
  layouts::Source source;
};

/// The copies to make if there is no error.
struct Plan {
  std::vector<Assignment> assignments;
  /// The keys of the file that are read.
  std::vector<std::string> keys;
  LoadReport report;
};

/// Returns the parameters and buffers of `module`; they share its memory.
StateDict state_dict(const torch::nn::Module& module);

/// Plans the loading of `file` into `module`. Throws c10::Error, which lists
/// all errors in the words of Python's `load_state_dict`.
Plan make_plan(
    const torch::nn::Module& module,
    const files::WeightFile& file,
    const LoadOptions& options);

} // namespace torch_attention::weights
