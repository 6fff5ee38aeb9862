#pragma once

#include <weights/state_dict.h>

#include <optional>
#include <string>

namespace torch_attention::weights {

/// Returns a sentence that names an attention of the file whose layers have
/// names of a class that is known, but whose order of rows these do not tell:
/// how its weights are loaded. None if there is no such attention. `start` is
/// the path of `tensors` in the file.
std::optional<std::string> layer_names_hint(
    const StateDict& tensors,
    const std::string& start);

} // namespace torch_attention::weights
