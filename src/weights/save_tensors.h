#pragma once

#include <torch_attention/weights/save.h>
#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights {

/// Saves tensors as `save_weights` saves the tensors of a module.
void save_tensors(
    const StateDict& tensors,
    const std::string& path,
    const SaveOptions& options);

} // namespace torch_attention::weights
