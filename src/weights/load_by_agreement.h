#pragma once

#include <torch_attention/weights/load.h>

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <string>

namespace torch_attention::weights {

/// One process's share of a file's checksums, if several processes load the
/// same tensors.
struct ShareOfChecks {
  size_t index = 0;
  size_t count = 1;
};

/// Loads like `load_weights`, but first passes its error, or an empty text, to
/// `agree`, before anything changes. `agree` throws if other processes have
/// failed.
LoadReport load_by_agreement(
    torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options,
    const ShareOfChecks& share,
    const std::function<void(const std::string& error)>& agree);

} // namespace torch_attention::weights
