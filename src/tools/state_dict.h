#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <string>

namespace torch_attention::tools {

/// Names and tensors in the order of the file or module.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

} // namespace torch_attention::tools
