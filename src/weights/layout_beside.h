#pragma once

#include <weights/layouts/find.h>

#include <string>

namespace torch_attention::weights {

/// Returns a function that chooses between layouts with the same keys and
/// shapes by the `config.json` next to the file at `path`, of which the part
/// below `start` is read. Both are empty for tensors that are not from a file.
layouts::Decide layout_beside(
    const std::string& path,
    const std::string& start);

} // namespace torch_attention::weights
