#pragma once

#include <torch_attention/weights/load.h>

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <string>

namespace torch_attention::weights {

/// The share of a file's checksums that one of several processes checks, which
/// all need the same tensors.
struct ShareOfChecks {
  size_t index = 0;
  size_t count = 1;
};

/// Loads as `load_weights` does, but gives `agree` what is wrong, or nothing,
/// before anything changes. `agree` throws if others cannot go on.
LoadReport load_by_agreement(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options,
    const ShareOfChecks& share,
    const std::function<void(const std::string& error)>& agree);

} // namespace torch_attention::weights
