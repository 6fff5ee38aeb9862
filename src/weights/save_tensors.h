#pragma once

#include <torch_attention/weights/save.h>
#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights {

/// Does the same as `save_weights`, of what a module would have.
void save_tensors(
    const StateDict& tensors,
    const std::string& path,
    const SaveOptions& options);

} // namespace torch_attention::weights
