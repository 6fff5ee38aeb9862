#pragma once

#include <weights/state_dict.h>

#include <optional>
#include <string>

namespace torch_attention::weights {

/// Returns a sentence on how to load an attention module of the file whose
/// layers have the names of a known class. Such names do not determine the
/// order of rows. None if there is no such module. `start` is the path of
/// `tensors` in the file.
std::optional<std::string> layer_names_hint(
    const StateDict& tensors,
    const std::string& start);

} // namespace torch_attention::weights
